"""Policies by name, ours and a stranger's."""

import importlib
import os
import shutil
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path

import pytest

from engine import plugins
from engine.plugins import (
    PREEMPTION_GROUP,
    SCHEDULING_GROUP,
    BrokenPolicyError,
    InvalidOptionError,
    UnknownOptionError,
    UnknownPolicyError,
    check_pair,
    installed,
    load_preemption_policy,
    load_scheduling_policy,
)
from tests.policies.distributions import add_distribution

SCHEDULING = ("fair", "fcfs", "priority", "vtc", "drr", "mlfq", "srpt", "edf")
PREEMPTION = ("over_served", "latest_arrival", "least_lost_work", "never")


def test_our_policies_are_installed_under_their_names():
    assert set(SCHEDULING) <= set(installed(SCHEDULING_GROUP))
    assert set(PREEMPTION) <= set(installed(PREEMPTION_GROUP))


def test_each_load_gives_a_new_policy():
    assert load_scheduling_policy("vtc", {}) is not load_scheduling_policy("vtc", {})


@pytest.mark.parametrize("load", [load_scheduling_policy, load_preemption_policy])
def test_an_unknown_name_lists_what_is_installed(load):
    with pytest.raises(UnknownPolicyError, match="there is no policy fifo; installed are: ") as error:
        load("fifo", {})

    assert all(name in str(error.value) for name in error.value.installed)
    assert error.value.installed


def test_a_policy_that_is_installed_later_is_found_and_one_that_is_gone_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownPolicyError):
        load_scheduling_policy("late", {})
    add_distribution(tmp_path, "latecomer", "[evenflow.scheduling_policies]\nlate = policies.fcfs:Fcfs\n")
    load_scheduling_policy("late", {})
    shutil.rmtree(tmp_path / "latecomer-1.0.dist-info")
    os.utime(tmp_path, ns=(1, 1))  # whatever the resolution of its times is

    with pytest.raises(UnknownPolicyError):
        load_scheduling_policy("late", {})


def test_distributions_are_read_once_while_none_comes_or_goes(monkeypatch: pytest.MonkeyPatch):
    num_readings = 0

    def counted(**selected: str) -> EntryPoints:
        nonlocal num_readings
        num_readings += 1
        return entry_points(**selected)

    monkeypatch.setattr(plugins, "entry_points", counted)
    for name in (*SCHEDULING, *SCHEDULING):
        load_scheduling_policy(name, {})

    assert num_readings <= 1


def test_a_preemption_policy_is_no_scheduling_policy():
    with pytest.raises(UnknownPolicyError):
        load_scheduling_policy("latest_arrival", {})


def test_an_unknown_option_is_refused_by_name():
    with pytest.raises(
        UnknownOptionError, match="vtc has no option quantum; its options are: prefill_cost, output_cost"
    ):
        load_scheduling_policy("vtc", {"prefill_cost": "1", "quantum": "3"})


def test_a_policy_without_options_takes_none():
    with pytest.raises(UnknownOptionError, match="fcfs has no option quantum; its options are: none"):
        load_scheduling_policy("fcfs", {"quantum": "3"})


def test_an_option_of_the_wrong_type_is_refused_by_name():
    with pytest.raises(InvalidOptionError, match="option prefill_cost of policy vtc must be float, not 'much'"):
        load_scheduling_policy("vtc", {"prefill_cost": "much"})


class TestPair:
    def test_a_policy_that_must_preempt_is_refused_beside_one_that_never_does(self):
        strict = load_scheduling_policy("fcfs", {})
        strict.requires_preemption = True

        with pytest.raises(InvalidOptionError, match=r"scheduling policy fcfs .* needs .*; never never does"):
            check_pair(strict, load_preemption_policy("never", {}))

    @pytest.mark.parametrize("preemption", PREEMPTION)
    def test_any_other_pair_is_taken(self, preemption: str):
        check_pair(load_scheduling_policy("fcfs", {}), load_preemption_policy(preemption, {}))


@pytest.mark.usefixtures("stranger")
def test_a_strangers_package_is_found_like_our_own():
    assert type(load_scheduling_policy("shortest_prompt", {"ms_per_token": "2.5"})).__module__ == "shortest_prompt"
    assert type(load_preemption_policy("longest_output", {})).__module__ == "shortest_prompt"
    assert "shortest_prompt" in installed(SCHEDULING_GROUP)
    with pytest.raises(InvalidOptionError, match="policy shortest_prompt: ms_per_token must be at least 0, not nan"):
        load_scheduling_policy("shortest_prompt", {"ms_per_token": "nan"})


@pytest.mark.usefixtures("faulty")
class TestFaulty:
    def test_options_of_every_type_are_parsed(self):
        options = {"patience": "3", "reverse": "True", "label": "x", "factor": "0.5"}

        assert load_scheduling_policy("sound", options).options == (3, True, "x", 0.5)

    @pytest.mark.parametrize(
        ("option", "text"), [("patience", "3.5"), ("patience", "-1"), ("reverse", "yes"), ("factor", "")]
    )
    def test_option_that_does_not_parse_or_is_refused_is_named(self, option: str, text: str):
        with pytest.raises(InvalidOptionError, match=option):
            load_scheduling_policy("sound", {option: text})

    def test_option_without_a_type_is_the_strangers_fault(self):
        with pytest.raises(BrokenPolicyError, match="option patience of policy untyped must be annotated"):
            load_scheduling_policy("untyped", {"patience": "1"})

    @pytest.mark.parametrize("name", ["missing_module", "missing_class"])
    def test_that_cannot_be_imported_is_named(self, name: str):
        with pytest.raises(BrokenPolicyError, match=f"policy {name} .* cannot be imported"):
            load_scheduling_policy(name, {})

    def test_that_is_not_a_class_is_named(self):
        with pytest.raises(BrokenPolicyError, match=r"function .* is not a class"):
            load_scheduling_policy("function", {})

    def test_that_lacks_methods_is_told_which(self):
        with pytest.raises(BrokenPolicyError, match="is no SchedulingPolicy: it lacks on_arrive, on_leave, begin, key"):
            load_scheduling_policy("incomplete", {})
        with pytest.raises(BrokenPolicyError, match="is no PreemptionPolicy: it lacks victims"):
            load_preemption_policy("incomplete", {})

    def test_that_takes_our_name_is_refused_rather_than_preferred(self, faulty: Path):
        add_distribution(faulty, "impostor", "[evenflow.scheduling_policies]\nvtc = faulty_policies:Sound\n")
        importlib.invalidate_caches()

        with pytest.raises(
            UnknownPolicyError, match=r"vtc is installed more than once: faulty_policies:Sound, policies\.vtc:Vtc"
        ):
            load_scheduling_policy("vtc", {})
