"""`sim check-policy` tells of policies that end the process, raise what is no Exception, or leap too far."""

import importlib
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.commands.sim import app
from engine.core.policy import Concession, Terms
from engine.sim.conformance import leaping
from engine.sim.conformance.report import run
from policies.fcfs import Fcfs
from policies.vtc import Vtc
from tests.policies.distributions import add_distribution

MODULE = """
import sys

from policies.fcfs import Fcfs


class Odd(BaseException):
    pass


class EndsWhenMade(Fcfs):
    def __init__(self):
        sys.exit(0)


class OddWhenMade(Fcfs):
    def __init__(self):
        raise Odd("no")


class EndsInBegin(Fcfs):
    def begin(self, start):
        sys.exit(0)


class OddInSelect(Fcfs):
    def select(self, passed):
        raise Odd("no")


class ClosesInCharge(Fcfs):
    def charge(self, service):
        raise GeneratorExit


class Annotated(Fcfs):
    def __init__(self, patience: "sys.exit(0)" = 0):
        super().__init__()
"""

ENTRY_POINTS = """
[evenflow.scheduling_policies]
ends_when_made = quitting_policies:EndsWhenMade
odd_when_made = quitting_policies:OddWhenMade
ends_in_begin = quitting_policies:EndsInBegin
odd_in_select = quitting_policies:OddInSelect
closes_in_charge = quitting_policies:ClosesInCharge
annotated = quitting_policies:Annotated
ends_when_imported = ending_policies:Policy
"""


@pytest.fixture
def quitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution of policies that end whoever calls them is installed."""
    (tmp_path / "quitting_policies.py").write_text(MODULE)
    (tmp_path / "ending_policies.py").write_text("import sys\nsys.exit(0)\n")
    add_distribution(tmp_path, "quitting", ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "quitting_policies", raising=False)
    importlib.invalidate_caches()


@pytest.mark.usefixtures("quitting")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ends_when_made", "policy ends_when_made cannot be made: SystemExit: 0"),
        ("odd_when_made", "policy odd_when_made cannot be made: Odd: no"),
        ("ends_in_begin", "SystemExit: 0"),
        ("odd_in_select", "Odd: no"),
        ("closes_in_charge", "GeneratorExit: "),
        ("annotated", "the options of policy annotated cannot be read: SystemExit: 0"),
        ("ends_when_imported", "cannot be imported: SystemExit: 0"),
    ],
)
def test_a_policy_that_ends_its_caller_is_told_as_broken(name: str, reason: str):
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["check-policy", name])

    assert result.exit_code == 1
    assert "broken" in result.stdout
    assert reason in result.stdout
    assert result.stdout.splitlines()[-1].endswith("rules kept")


class LeapsTooFar(Fcfs):
    def leap(self, services, times):
        return len(times) + 1


class LeapsBack(Fcfs):
    def leap(self, services, times):
        return -1


class LeapsByHalves(Fcfs):
    def leap(self, services, times):
        return len(times) / 2


class LeapsNowhere(Fcfs):
    def leap(self, services, times):
        raise RuntimeError("no ground")


class Counts(Vtc):
    """As vtc, a base that tests may change."""


class ForgetsWhatItIsCharged(Counts):
    def leap(self, services, times):
        return len(times)


class LeapsOverItsHead(Counts):
    def leap(self, services, times):
        for service in (*services,) * len(times):
            self.charge(service)
        return len(times)


class ChangesItsTerms(Fcfs):
    num_plans = 0

    def begin(self, start):
        self.num_plans += 1
        return Terms(paces_prefill=self.num_plans % 7 == 0)


class GivesWayInTime(Fcfs):
    num_plans = 0

    def begin(self, start):
        self.num_plans += 1
        return super().begin(start)

    def leap(self, services, times):
        self.num_plans += len(times)
        return len(times)

    def concede(self, victim, claimant):
        return Concession.SWAP if self.num_plans % 9 == 0 else Concession.NOTHING


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (LeapsTooFar, r"leap answered \d+ where \d+ steps were offered"),
        (LeapsBack, "leap answered -1 where"),
        (LeapsByHalves, r"leap answered .*\.\d where"),
        (LeapsNowhere, "RuntimeError: no ground"),
    ],
)
def test_a_leap_that_is_no_number_of_steps_is_told(policy: type, reason: str):
    check = run("answers", lambda: leaping.check_answers(policy))

    assert check.reason is not None
    assert re.search(reason, check.reason)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (ForgetsWhatItIsCharged, "single steps"),
        (LeapsOverItsHead, "although others are selected"),
        (ChangesItsTerms, "other terms after"),
        (GivesWayInTime, "although somebody gives way"),
    ],
)
def test_a_leap_that_single_steps_would_not_have_made_is_told(policy: type, reason: str):
    check = run("steps", lambda: leaping.check_steps(policy))

    assert check.reason is not None
    assert reason in check.reason


@pytest.mark.parametrize("policy", [Fcfs, Vtc])
def test_a_leap_that_is_so_many_single_steps_is_kept(policy: type):
    assert run("answers", lambda: leaping.check_answers(policy)).passed
    assert run("steps", lambda: leaping.check_steps(policy)).passed
    pairs = [(pair.leap(), bool(pair.leaping.waiting)) for pair in leaping._leaps(policy)]
    assert sum(num_steps for num_steps, _ in pairs) > 500
    assert sum(num_steps for num_steps, is_waiting in pairs if is_waiting) > 100
