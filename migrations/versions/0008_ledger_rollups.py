"""Hourly sums of the ledger, and teams whose callers hear of an end only when its usage is on disk.

A trigger keeps the sums: it sees exactly the rows that a statement inserted, so that a replay adds nothing, and it
works for the previous release too. What is there already is summed up here, while the trigger's lock keeps writers out.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008_ledger_rollups"
down_revision = "0007_grants_and_denials"
branch_labels = None
depends_on = None

KEYS = ("hour", "organization_id", "team_id", "key_id", "model", "priority_class")
SUMS = (
    "num_requests",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "billed_tokens",
    "discarded_tokens",
    "recomputed_tokens",
    "num_preemptions",
    "queue_ns",
    "prefill_ns",
    "decode_ns",
    "preempted_ns",
)
# The first 48 bits of a UUIDv7 are milliseconds since 1970 (RFC 9562, §5.7).
HOUR = (
    "to_timestamp((('x' || translate(substr(generation_id::text, 1, 13), '-', ''))::bit(48)::bigint / 3600000) * 3600)"
)
COLUMNS = ", ".join((*KEYS, *SUMS))
SUMMED = ", ".join(
    (*(f"{HOUR} AS hour" if key == "hour" else key for key in KEYS), "count(*)", *map("sum({})".format, SUMS[1:]))
)
# In one order everywhere, so that writers whose rows overlap wait for each other and never in a circle.
ROLL_UP = (
    f"INSERT INTO usage_rollup_hour AS total ({COLUMNS}) SELECT {SUMMED} FROM {{rows}}"  # noqa: S608 - constants
    " GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6"
    f" ON CONFLICT ({', '.join(KEYS)}) DO UPDATE SET "
    + ", ".join(f"{name} = total.{name} + excluded.{name}" for name in SUMS)
)


def upgrade() -> None:
    op.add_column("team", sa.Column("durable_usage", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_table(
        "usage_rollup_hour",
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("organization_id", sa.Uuid(), nullable=False),
        sa.Column("team_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("priority_class", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in SUMS),
        sa.CheckConstraint("extract(epoch FROM hour)::bigint % 3600 = 0", name=op.f("ck_usage_rollup_hour_hour")),
        sa.PrimaryKeyConstraint(*KEYS, name="pk_usage_rollup_hour"),
    )
    op.execute(
        "CREATE FUNCTION usage_event_roll_up() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {ROLL_UP.format(rows='inserted')}; RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER usage_event_roll_up AFTER INSERT ON usage_event REFERENCING NEW TABLE AS inserted"
        " FOR EACH STATEMENT EXECUTE FUNCTION usage_event_roll_up()"
    )
    op.execute(ROLL_UP.format(rows="usage_event"))


def downgrade() -> None:
    op.execute("DROP TRIGGER usage_event_roll_up ON usage_event")
    op.execute("DROP FUNCTION usage_event_roll_up()")
    op.drop_table("usage_rollup_hour")
    op.drop_column("team", "durable_usage")
