"""Each step's SQL, as Postgres gets it, is safe beside live traffic: checked by squawk."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import Script, ScriptDirectory

SQUAWK = Path(sys.executable).parent / "squawk"
MIGRATIONS = Path(__file__).parents[2] / "migrations"
TIMEOUTS = "SET lock_timeout = '4s';\nSET statement_timeout = '300s';\n"  # as migrations/env.py sets them
# What squawk finds and is meant so, each with the reason.
ACCEPTED = {
    ("0007_grants_and_denials", "constraint-missing-not-valid"): "quota_policy has a row per tenant: the scan is short",
    ("0009_identity", "constraint-missing-not-valid"): "api_key has a row per key, and the transaction is this step's",
    ("0009_identity", "ban-drop-constraint"): "it is replaced by a wider one, which holds for all that there was",
}


def steps() -> list[Script]:
    """Oldest first."""
    return list(reversed(list(ScriptDirectory(str(MIGRATIONS)).walk_revisions())))


def sql_of(step: Script) -> str:
    """What the step's upgrade would send."""
    buffer = io.StringIO()
    options = {"as_sql": True, "output_buffer": buffer}
    with Operations.context(MigrationContext.configure(dialect_name="postgresql", opts=options)):
        step.module.upgrade()
    return TIMEOUTS + buffer.getvalue()


def findings(sql: str) -> set[str]:
    """The names of the rules that the statements, run in one transaction, break."""
    options = ("--assume-in-transaction", "--pg-version", "15.0", "--reporter", "json")
    ran = subprocess.run([SQUAWK, *options], input=sql, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    return {finding["rule_name"] for finding in json.loads(ran.stdout)}


def test_every_step_is_safe_beside_live_traffic() -> None:
    found = {(step.revision, rule) for step in steps() for rule in findings(sql_of(step))}

    assert found == set(ACCEPTED)


@pytest.mark.parametrize(
    ("sql", "rule"),
    [
        ("ALTER TABLE team ADD COLUMN surprise text NOT NULL;", "adding-required-field"),
        ("ALTER TABLE team DROP COLUMN slug;", "ban-drop-column"),
        ("ALTER TABLE team RENAME COLUMN slug TO name;", "renaming-column"),
        ("ALTER TABLE team ALTER COLUMN slug TYPE varchar(10);", "changing-column-type"),
    ],
)
def test_what_would_break_the_previous_release_is_found(sql: str, rule: str) -> None:
    assert rule in findings(TIMEOUTS + sql)
