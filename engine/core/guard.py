"""The policies as the core calls them: one that raises, or names what it was not offered, is replaced.

From then on requests are served in order of arrival, and `fault` says which policy failed and how. The engine goes on.
"""

import contextlib
import itertools
import math
from collections import abc
from dataclasses import replace

from engine.core.arrival_order import ArrivalOrder
from engine.core.errors import PolicyTakeoverError
from engine.core.policy import (
    BoundedPolicy,
    Concession,
    FlowView,
    LeaveReason,
    PlanStart,
    PreemptionPolicy,
    SchedulingPolicy,
    SequenceView,
    Service,
    Terms,
)
from engine.core.sequence import Sequence
from engine.core.types import Nanos

CAUGHT = (BaseException,)  # but for KeyboardInterrupt, which is raised again: in a main thread it is the user's
SILENT = (Exception, SystemExit, GeneratorExit)
MAX_RANKS = 32  # numbers of a key or a standing; nobody needs as many, and an endless iterator has more


class GuardedPolicy:
    """A scheduling policy that cannot harm the core. `waiting` are the sequences that it was told wait, by arrival."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self.fault: str | None = None
        self.waiting: dict[int, SequenceView] = {}
        self._given = self._terms = Terms()  # what the policy gave last, and what was made of it
        self._snapshots: dict[type, bytes] = {}  # of policies that were replaced, the last one last

    def replace(self, policy: SchedulingPolicy, now: Nanos) -> None:
        """`policy` takes over the newest counters that it understands, and those that wait, in order of arrival.

        Raises PolicyTakeoverError if it fails at that; the old policy stays, as if nothing had been asked.
        """
        self._snapshots.pop(type(self.policy), None)
        with contextlib.suppress(*SILENT):  # one that cannot tell its counters may still be replaced
            self._snapshots[type(self.policy)] = bytes(self.policy.snapshot())
        for snapshot in reversed(self._snapshots.values()):
            with contextlib.suppress(*SILENT):  # counters of another kind, or no counters at all
                policy.restore(snapshot)
                break
        try:
            for index in sorted(self.waiting):
                policy.on_arrive(self.waiting[index], now)
        except CAUGHT as error:
            raise PolicyTakeoverError(_fault(policy, error)) from None
        self.policy, self.fault = policy, None

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        self.waiting[seq.arrival_index] = seq
        try:
            self.policy.on_arrive(seq, now)
        except CAUGHT as error:
            self.fail(error)

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        self.waiting.pop(seq.arrival_index, None)
        try:
            self.policy.on_leave(seq, reason, now)
        except CAUGHT as error:
            self.fail(error)

    def begin(self, start: PlanStart) -> Terms:
        try:
            terms = self.policy.begin(start)
            if terms is not self._given:  # they are frozen: those of the last plan need not be looked at again
                self._terms, self._given = self._safe(terms), terms
            return self._terms
        except CAUGHT as error:
            self.fail(error)
            return Terms()

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        """A sequence that waits and was not passed, or None. Where nobody waits the policy is not asked."""
        if not self.waiting:
            return None
        passed = tuple(passed)
        try:
            chosen = self.policy.select(passed)
            if chosen is not None and (self.waiting.get(chosen.arrival_index) is not chosen or chosen in passed):
                raise ValueError(f"select chose {chosen.key}, which was not to be had")
        except CAUGHT as error:
            self.fail(error)
            return self.policy.select(passed)
        return chosen

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        try:
            return _ranks(self.policy.key(seq))
        except CAUGHT as error:
            self.fail(error)
            return self.policy.key(seq)

    def concessions(self, owners: abc.Iterable[Sequence], claimant: Sequence) -> dict[Sequence, Concession]:
        """Those of `owners` that give up something for `claimant`, and what."""
        concessions: dict[Sequence, Concession] = {}
        concede, nothing = self.policy.concede, Concession.NOTHING
        try:
            for owner in owners:
                concession = concede(owner, claimant)
                if concession is not nothing:
                    is_known = isinstance(concession, Concession)
                    concessions[owner] = concession if is_known else Concession(concession)
        except CAUGHT as error:
            self.fail(error)
        return concessions

    def first_to_concede(self, owners: abc.Iterable[Sequence], claimant: Sequence) -> Sequence | None:
        """The first of `owners` that gives up at least its row for `claimant`."""
        concede, nothing = self.policy.concede, Concession.NOTHING
        try:
            for owner in owners:
                concession = concede(owner, claimant)
                if concession is not nothing and Concession(concession) is not nothing:
                    return owner
        except CAUGHT as error:
            self.fail(error)
        return None

    def charge(self, services: abc.Sequence[Service]) -> None:
        """Everything that one step served."""
        charge = self.policy.charge
        try:
            for service in services:
                charge(service)
        except CAUGHT as error:
            self.fail(error)

    def leap(
        self,
        leap: abc.Callable[[abc.Sequence[Service], abc.Sequence[Nanos]], int],
        services: abc.Sequence[Service],
        times: abc.Sequence[Nanos],
    ) -> int:
        """For how many of `times` the policy, whose method `leap` is, was charged."""
        try:
            num_steps = leap(services, times)
            if type(num_steps) is not int or not 0 <= num_steps <= len(times):
                raise ValueError(f"leap answered {num_steps!r} where {len(times)} steps were offered")
            return num_steps
        except CAUGHT as error:
            self.fail(error)
            return 0

    def standing(self, flow: FlowView) -> tuple[float, ...]:
        try:
            return _ranks(self.policy.standing(flow))
        except CAUGHT as error:
            self.fail(error)
            return ()

    def gap_bound(self) -> float | None:
        """What a policy that has a bound says that it is: see `BoundedPolicy`."""
        policy = self.policy
        if not isinstance(policy, BoundedPolicy):
            return None
        try:
            (bound,) = _ranks((policy.gap_bound(),))
            return bound
        except CAUGHT as error:
            self.fail(error)
            return None

    def _safe(self, terms: Terms) -> Terms:
        """The terms in types that run no code of the policy, but for a share that is checked each time."""
        _check_terms(terms)
        if type(terms.yielding) not in (set, frozenset):
            terms = replace(terms, yielding=frozenset(terms.yielding))
        if terms.share is None:
            return terms
        policy, share = self.policy, terms.share

        def checked_share(flow: FlowView) -> float:
            try:
                part = float(share(flow))
                if not 0 < part < math.inf:
                    raise ValueError(f"the share of {flow.tenant_id} must be finite and above 0, not {part}")
                return part
            except CAUGHT as error:
                if self.policy is policy or isinstance(error, KeyboardInterrupt):
                    self.fail(error)
                return math.prod(node.weight for node in flow.nodes)

        return replace(terms, share=checked_share)

    def fail(self, error: BaseException) -> None:
        """The order of arrival takes over."""
        self.fault = _fault(self.policy, error)
        fallback = ArrivalOrder()
        for index in sorted(self.waiting):
            fallback.on_arrive(self.waiting[index], Nanos(0))
        self.policy = fallback


class GuardedPreemption:
    """A preemption policy that cannot harm the core. After a fault the latest to arrive give way first."""

    def __init__(self, policy: PreemptionPolicy) -> None:
        self.policy: PreemptionPolicy | None = policy
        self.fault: str | None = None

    def replace(self, policy: PreemptionPolicy) -> None:
        self.policy, self.fault = policy, None

    def victims(
        self,
        resident: abc.Sequence[Sequence],
        claimant: Sequence,
        standing: abc.Callable[[FlowView], tuple[float, ...]],
        now: Nanos,
    ) -> abc.Iterator[Sequence]:
        """Sequences of `resident`, each at most once."""
        if self.policy is not None:
            try:
                return iter(_checked(self.policy.victims(tuple(resident), claimant, standing, now), resident))
            except CAUGHT as error:
                self.fault = _fault(self.policy, error)
                self.policy = None
        return iter(sorted(resident, key=lambda seq: -seq.arrival_index))


def _checked(victims: abc.Iterator[SequenceView], resident: abc.Sequence[Sequence]) -> list[Sequence]:
    """The victims, in order. Raises ValueError if one was not offered, or is named twice; never asks without end."""
    offered = {seq.key: seq for seq in resident}
    chosen = []
    for view in victims:
        victim = offered.pop(view.key, None)
        if victim is None:
            raise ValueError(f"victims chose {view.key}, which it was not offered, or had named before")
        chosen.append(victim)
    return chosen


def _ranks(numbers: abc.Iterable[float]) -> tuple[float, ...]:
    """The numbers, each of which compares with any other. Raises ValueError where one does not."""
    ranks = tuple(map(float, itertools.islice(numbers, MAX_RANKS)))
    if math.isnan(sum(ranks)) and any(map(math.isnan, ranks)):  # so is a sum of infinities of both signs
        raise ValueError(f"there is no order among {ranks}")
    return ranks


def _check_terms(terms: Terms) -> None:
    if not isinstance(terms, Terms):
        raise TypeError(f"begin must return Terms, not {type(terms).__name__}")
    order, share = terms.class_order, terms.share
    is_order = order is None or (isinstance(order, tuple) and all(isinstance(name, str) for name in order))
    flags = (terms.lends, terms.paces_prefill, terms.protects_yielding, terms.concedes_by_share)
    are_flags = all(isinstance(flag, bool) for flag in flags)
    if not (isinstance(terms.yielding, abc.Set) and is_order and are_flags and (share is None or callable(share))):
        raise TypeError(f"begin returned {type(terms).__name__} with a field of another type")


def _fault(policy: object, error: BaseException) -> str:
    """Whose fault it was, and what happened, in one line. Raises a KeyboardInterrupt again: it is nobody's fault."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    try:
        text = str(error)
    except CAUGHT:
        text = "its message cannot be read"
    return f"policy {type(policy).__module__}.{type(policy).__qualname__}: {type(error).__name__}: {text}"
