"""Rules, alerts and boards as files: each is valid, and asks for nothing that there is not."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import find_program
from tests.telemetry.queries import BOARDS, board_queries, known_names, metrics_of, rules

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/prometheus"


def run(*command: str, folder: Path = FOLDER) -> str:
    """Its output; fails where it does not end with 0."""
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_rules_alerts_and_configuration_are_valid():
    promtool = find_program("promtool")

    assert "SUCCESS" in run(promtool, "check", "rules", "rules.yml", "alerts.yml")
    assert "SUCCESS" in run(promtool, "check", "config", "prometheus.yml")


def test_alerts_fire_when_they_should_and_only_then():
    assert "SUCCESS" in run(find_program("promtool"), "test", "rules", "alerts_test.yml")


def test_every_alert_has_a_unit_test_and_a_severity():
    alerts = [rule for rule in rules() if "alert" in rule]
    tested = (FOLDER / "alerts_test.yml").read_text()

    assert len({alert["alert"] for alert in alerts}) > 10
    for alert in alerts:
        assert f"alertname: {alert['alert']}" in tested
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert alert["annotations"]["summary"]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("record") or rule.get("alert"))
def test_rule_asks_for_what_there_is(rule: dict):
    assert metrics_of(rule["expr"]) <= known_names()


@pytest.mark.parametrize(("panel", "query"), board_queries())
def test_panel_asks_for_what_there_is(panel: str, query: str):
    asked = metrics_of(query)

    assert asked
    assert asked <= known_names(), panel


def test_there_are_five_boards_and_they_are_what_is_generated():
    pytest.importorskip("grafana_foundation_sdk")

    assert len(BOARDS) == 5
    run(sys.executable, "deploy/grafana/build.py", "--check", folder=ROOT)


def test_what_there_is_not_is_found():
    assert not metrics_of("sum(rate(evenflow_made_up_total[5m])) / on (a) group_left () max(up)") <= known_names()
