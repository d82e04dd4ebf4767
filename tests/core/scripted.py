"""A policy that does what a test says, and small pools in which it matters."""

import random
from collections import abc
from types import MappingProxyType

from engine.core.config import PreemptionChoice
from engine.core.events import Preempted
from engine.core.policy import Concession, LeaveReason, PlanStart, SequenceView, Standing, Terms
from engine.core.sequence import Sequence
from engine.core.types import Nanos, PauseReason, PreemptionMode, SequenceStatus
from policies.fcfs import Fcfs
from tests.builders import Driver, make_scheduler

NOBODY: abc.Mapping[str, Concession] = MappingProxyType({})


class Scripted(Fcfs):
    """Order of arrival; heads without room are passed. Tenants are named by their team, one letter each.

    first      tenants whose requests come before all others
    yielding   tenants that yield
    concedes   what a tenant gives up to another one, nothing where it is not named
    refuses    tenants of which nobody is selected

    A test may change all of them between two plans.
    """

    def __init__(
        self,
        *,
        first: str = "",
        yielding: str = "",
        concedes: abc.Mapping[str, Concession] = NOBODY,
        lends: bool = True,
        protects_yielding: bool = True,
        paces_prefill: bool = False,
    ) -> None:
        super().__init__()
        self.first = first
        self.yielding = yielding
        self.concedes = concedes
        self.refuses = ""
        self.lends = lends
        self.protects_yielding = protects_yielding
        self.paces_prefill = paces_prefill
        self._queue: dict[int, SequenceView] = {}
        self._flows: dict[object, None] = {}

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        self._queue[seq.arrival_index] = seq
        self._flows[seq.flow] = None

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        self._queue.pop(seq.arrival_index, None)

    def begin(self, start: PlanStart) -> Terms:
        return Terms(
            yielding=frozenset(flow for flow in self._flows if flow.tenant_id[-1] in self.yielding),
            lends=self.lends,
            protects_yielding=self.protects_yielding,
            paces_prefill=self.paces_prefill,
        )

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        heads = [seq for seq in self._queue.values() if seq not in passed and _team(seq) not in self.refuses]
        return min(heads, key=self._place, default=None)

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        return self._place(seq)[:2]

    def concede(self, victim: SequenceView, claimant: SequenceView) -> Concession:
        is_other = victim.flow is not claimant.flow
        return self.concedes.get(_team(victim), Concession.NOTHING) if is_other else Concession.NOTHING

    def _place(self, seq: SequenceView) -> tuple[float, ...]:
        return float(_team(seq) in self.yielding), float(_team(seq) not in self.first), seq.arrival_index


class Latest:
    """The latest arrivals give way first, to whomever."""

    def victims(
        self, resident: abc.Sequence[SequenceView], claimant: SequenceView, standing: Standing, now: Nanos
    ) -> abc.Iterator[SequenceView]:
        return reversed(resident)


def _team(seq: SequenceView) -> str:
    return seq.tenant_id[-1]


class Late(random.Random):
    """Copies that draw from it end when `end_copies` says so, in the order in which they began."""

    def randint(self, a: int, b: int) -> int:
        return 1_000_000

    def shuffle(self, x: abc.MutableSequence[object]) -> None:
        """Nothing changes."""


def make_driver(policy: Scripted, *, is_late: bool = False, **fields: object) -> Driver:
    """Eight device blocks of four tokens and sixteen host blocks, nothing kept for growth and nobody protected.

    Copies end in the step that begins them unless they are late.
    """
    limits: dict[str, object] = {
        "num_device_blocks": 8,
        "num_host_blocks": 16,
        "growth_reserve_tokens": 0,
        "min_resident_steps": 0,
        "preemption_mode": PreemptionChoice.SWAP if fields.get("num_host_blocks") != 0 else PreemptionChoice.AUTO,
        "max_num_batched_tokens": 32,
    }
    driver = Driver(make_scheduler(policy, Latest(), **(limits | fields)))
    if is_late:
        driver.runner.copies.random = Late()
    return driver


def end_copies(driver: Driver) -> None:
    """The copies that are under way end with the next step, or now where no plan is made."""
    under_way = driver.runner.copies.under_way
    for copy_id, (_, copy) in under_way.items():
        under_way[copy_id] = (0, copy)


def preemptions_of(driver: Driver) -> list[tuple[str, PreemptionMode, PauseReason]]:
    """Who was paused or lost blocks so far, how and why."""
    return [(e.key.generation_id, e.mode, e.reason) for e in driver.events if isinstance(e, Preempted)]


def seq_of(driver: Driver, generation_id: str) -> Sequence:
    return driver.scheduler.lifecycle.by_generation[generation_id]


def status_of(driver: Driver, generation_id: str) -> SequenceStatus:
    return seq_of(driver, generation_id).status
