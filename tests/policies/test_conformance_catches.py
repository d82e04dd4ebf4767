"""Each rule of the conformance suite is broken by a policy that breaks it, and the report says how."""

import random
import re

import pytest

from engine.core.policy import Concession, LeaveReason, Terms
from engine.sim.conformance.report import run
from engine.sim.conformance.suite import PREEMPTION_RULES, SCHEDULING_RULES
from policies.fcfs import Fcfs
from policies.latest_arrival import LatestArrival
from policies.over_served import OverServed
from policies.waiting import first_not_passed


class Breaks(Fcfs):
    """As fcfs, but for what a subclass breaks; a base that tests may share, unlike ours."""


class SelectsTheLast(Breaks):
    def __init__(self):
        super().__init__()
        self.last = []

    def on_arrive(self, seq, now):
        super().on_arrive(seq, now)
        self.last.append(seq)

    def on_leave(self, seq, reason, now):
        super().on_leave(seq, reason, now)
        self.last = [other for other in self.last if other is not seq]

    def select(self, passed):
        return None if passed or not self.last else self.last[-1]


class SkipsOne(Breaks):
    def select(self, passed):
        first = first_not_passed(self._waiting, passed)
        if not passed or first is None:
            return first
        return first_not_passed(self._waiting, (*passed, first)) or first


class NamesWhoHasLeft(Breaks):
    def on_leave(self, seq, reason, now):
        if reason is not LeaveReason.FINISHED:
            super().on_leave(seq, reason, now)


class TurnsWhenAsked(Breaks):
    num_asked = 0

    def key(self, seq):
        self.num_asked += 1
        return (float(self.num_asked),)


class HasNoOrder(Breaks):
    def key(self, seq):
        return (float("nan"),)


class KeysOfSeveralLengths(Breaks):
    def key(self, seq):
        return (1.0,) * (1 + seq.arrival_index % 2)


class StandsAtInfinity(Breaks):
    def standing(self, flow):
        return (float("inf"),)


class ConcedesTrue(Breaks):
    def concede(self, victim, claimant):
        return True


class EveryoneTakes(Breaks):
    def concede(self, victim, claimant):
        return Concession.SWAP


class ThrowsDice(Breaks):
    def concede(self, victim, claimant):
        return random.choice([Concession.SWAP, Concession.NOTHING])


class BeginsWithNothing(Breaks):
    def begin(self, start):
        return None


class NamesAClassTwice(Breaks):
    def begin(self, start):
        return Terms(class_order=("default", "default"))


class GivesUp(Breaks):
    num_selected = 0

    def on_leave(self, seq, reason, now):
        super().on_leave(seq, reason, now)
        self.num_selected += reason is LeaveReason.ADMITTED

    def select(self, passed):
        return None if self.num_selected > 50 else super().select(passed)


class ForgetsWhoCameBack(Breaks):
    def on_arrive(self, seq, now):
        if not seq.num_preemptions:
            super().on_arrive(seq, now)


class KnowsOnlyItsOwn(Breaks):
    def __init__(self):
        super().__init__()
        self.tenants = {}

    def on_arrive(self, seq, now):
        super().on_arrive(seq, now)
        self.tenants[seq.tenant_id] = 0

    def charge(self, service):
        self.tenants[service.flow.tenant_id] += service.num_output_tokens


class KeepsOrderToItself(Breaks):
    def __init__(self):
        super().__init__()
        self.tenants = {}

    def charge(self, service):
        self.tenants[service.flow.tenant_id] = self.tenants.get(service.flow.tenant_id, 0) + service.num_output_tokens

    def select(self, passed):
        return (
            min(self._waiting._entry_by_item, key=lambda seq: (self.key(seq), seq.arrival_index), default=None)
            if not passed
            else None
        )

    def key(self, seq):
        return (self.tenants.get(seq.tenant_id, 0),)


class TakesAnySnapshot(Breaks):
    def restore(self, snapshot):
        pass


class RemembersEveryone(Breaks):
    def __init__(self):
        super().__init__()
        self.seen = {}

    def on_arrive(self, seq, now):
        super().on_arrive(seq, now)
        self.seen[seq.tenant_id] = [object() for _ in range(4)]


class Raises(Breaks):
    def select(self, passed):
        raise RuntimeError("out of ideas")


@pytest.mark.parametrize(
    ("policy", "rule", "reason"),
    [
        (SelectsTheLast, "select names the lowest key that waits", "but the lowest key is that of"),
        (SkipsOne, "select names the lowest key that waits", "but was left out"),
        (NamesWhoHasLeft, "select names the lowest key that waits", "which does not wait"),
        (TurnsWhenAsked, "asking changes nothing", "changes what they"),
        (HasNoOrder, "keys and standings are finite", "only finite numbers have an order"),
        (KeysOfSeveralLengths, "keys and standings are finite", "several lengths"),
        (StandsAtInfinity, "keys and standings are finite", "standing gave"),
        (ConcedesTrue, "nobody gives way both ways", "concede gave True"),
        (EveryoneTakes, "nobody gives way both ways", "for ever"),
        (ThrowsDice, "nobody gives way both ways", "two answers|for ever"),
        (BeginsWithNothing, "terms are about flows with work", "begin gave None instead of Terms"),
        (NamesAClassTwice, "terms are about flows with work", "a class is named twice"),
        (GivesUp, "somebody is selected while somebody waits", "nothing was selected"),
        (NamesWhoHasLeft, "cancel works in every state", "a sequence is selected after it ended"),
        (ForgetsWhoCameBack, "whoever comes back is selected", "preempted is not selected again"),
        (KnowsOnlyItsOwn, "it can take over from another policy", "KeyError"),
        (KeepsOrderToItself, "a snapshot carries the order over", "the order is another"),
        (TakesAnySnapshot, "foreign snapshots are refused", "restore took"),
        (RemembersEveryone, "it forgets who is gone", "objects, after"),
        (Raises, "select names the lowest key that waits", "RuntimeError: out of ideas .*test_conformance_catches.py"),
    ],
)
def test_a_scheduling_policy_that_breaks_a_rule_is_told(policy, rule: str, reason: str):
    check = run(rule, lambda: SCHEDULING_RULES[rule](policy))

    assert not check.passed
    assert re.search(reason, check.reason), check.reason


class NamesOthers(LatestArrival):
    def victims(self, resident, claimant, standing, now):
        yield claimant


class NamesTwice(LatestArrival):
    def victims(self, resident, claimant, standing, now):
        yield from (seq for seq in resident[:1] for _ in range(2))


class Chooses(LatestArrival):
    def victims(self, resident, claimant, standing, now):
        return iter(random.sample(list(resident), len(resident)))


class GoesOnWhereItWas(LatestArrival):
    def __init__(self):
        self.number = 0

    def victims(self, resident, claimant, standing, now):
        for index in range(len(resident)):
            self.number += 1
            yield sorted(resident, key=lambda seq: seq.arrival_index)[(index + self.number - index - 1) % len(resident)]


class NeedsSomebody(LatestArrival):
    def victims(self, resident, claimant, standing, now):
        return iter([max(resident, key=lambda seq: seq.arrival_index)])


class Compares(OverServed):
    def victims(self, resident, claimant, standing, now):
        return iter(sorted(resident, key=lambda seq: (standing(seq.flow)[0], seq.arrival_index)))


@pytest.mark.parametrize(
    ("policy", "rule", "reason"),
    [
        (NamesOthers, "victims are offered, each once, always the same", "was not offered"),
        (NamesTwice, "victims are offered, each once, always the same", "twice|more victims"),
        (Chooses, "victims are offered, each once, always the same", "other victims"),
        (GoesOnWhereItWas, "an iterator may be left unfinished", "changes the next answer"),
        (NeedsSomebody, "no offer, no victim", "ValueError"),
        (Compares, "any standing will do", "IndexError"),
    ],
)
def test_a_preemption_policy_that_breaks_a_rule_is_told(policy, rule: str, reason: str):
    check = run(rule, lambda: PREEMPTION_RULES[rule](policy))

    assert not check.passed
    assert re.search(reason, check.reason), check.reason
