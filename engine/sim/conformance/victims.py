"""Who gives way: rules of a preemption policy, on sequences without a scheduler."""

import itertools
import math
import random
from collections import abc
from dataclasses import dataclass

from engine.core.policy import FlowView, PreemptionPolicy, SequenceView, Standing
from engine.core.types import Nanos, PriorityClass, SequenceStatus
from engine.sim.conformance.report import require
from engine.sim.conformance.views import PlainSequence, Tenancy

NUM_CASES = 60
NOW = Nanos(0)
CLASSES = (PriorityClass("interactive", 0), PriorityClass("batch", 3))
RESIDENT = (SequenceStatus.RUNNING, SequenceStatus.PAUSED)

Make = abc.Callable[[], PreemptionPolicy]


@dataclass(frozen=True, slots=True)
class _Counters:
    """Standings by id of the flow; `default` for the others."""

    standings: dict[int, tuple[float, ...]]
    default: tuple[float, ...] = ()

    def __call__(self, flow: FlowView) -> tuple[float, ...]:
        return self.standings.get(id(flow), self.default)


def check_victims(make: Make) -> None:
    """Victims are sequences that were offered, each at most once; the same offer gives the same victims."""
    policy = make()
    for resident, claimant, standing in _cases():
        victims = _victims(policy, resident, claimant, standing)
        for victim in victims:
            is_offered = any(victim is seq for seq in resident)
            require(is_offered, f"{getattr(victim, 'key', victim)!r} is a victim, but was not offered")
        require(len({id(victim) for victim in victims}) == len(victims), "a victim is named twice")
        again = _victims(policy, resident, claimant, standing)
        require(list(map(id, again)) == list(map(id, victims)), "the same offer gives other victims")


def check_laziness(make: Make) -> None:
    """The core stops asking when it has enough: the next question is answered as if it had gone on."""
    policy = make()
    for resident, claimant, standing in _cases():
        victims = _victims(policy, resident, claimant, standing)
        for _ in itertools.islice(policy.victims(tuple(resident), claimant, standing, NOW), 1):
            pass
        again = _victims(policy, resident, claimant, standing)
        require(again == victims, "an iterator that is not used up changes the next answer")


def check_no_offer(make: Make) -> None:
    """Where nothing is offered nobody gives way."""
    claimant = PlainSequence(0, Tenancy().flow("a"))
    require(not _victims(make(), [], claimant, _Counters({})), "a victim is named although none was offered")


def check_odd_standings(make: Make) -> None:
    """A scheduling policy that does not count, or counts in infinities, makes no difference to what is allowed."""
    policy = make()
    for odd in ((), (math.inf,), (-math.inf, 0.0)):
        for resident, claimant, _ in _cases():
            victims = _victims(policy, resident, claimant, _Counters({}, odd))
            for victim in victims:
                require(any(victim is seq for seq in resident), "a victim was not offered")


def _cases() -> abc.Iterator[tuple[list[PlainSequence], PlainSequence, Standing]]:
    """Offers of residents of several tenants and classes, to a claimant among them and to one that is not."""
    rng = random.Random(0)  # noqa: S311 - traffic, not secrets
    for number in range(NUM_CASES):
        tenancy = Tenancy()
        seqs = [_resident(rng, tenancy, index) for index in range(rng.randint(1, 9))]
        rng.shuffle(seqs)
        standing = _Counters({id(flow): (float(rng.randint(0, 3)),) for flow in tenancy.flows.values()})
        claimant = seqs[0]
        if number % 2:
            claimant = seqs.pop()
            claimant.status, claimant.num_device_blocks, claimant.num_computed_tokens = SequenceStatus.WAITING, 0, 0
        yield seqs, claimant, standing


def _resident(rng: random.Random, tenancy: Tenancy, index: int) -> PlainSequence:
    flow = tenancy.flow(rng.choice("abc"), priority_class=rng.choice(CLASSES))
    num_computed = rng.randint(1, 40)
    return PlainSequence(
        index,
        flow,
        num_prompt_tokens=40,
        num_computed_tokens=num_computed,
        num_device_blocks=-(-num_computed // 4),
        num_preemptions=rng.randint(0, 2),
        status=rng.choice(RESIDENT),
    )


def _victims(
    policy: PreemptionPolicy, resident: list[PlainSequence], claimant: PlainSequence, standing: Standing
) -> list[SequenceView]:
    victims = list(itertools.islice(policy.victims(tuple(resident), claimant, standing, NOW), len(resident) + 1))
    require(len(victims) <= len(resident), f"{len(resident)} sequences were offered, and more victims are named")
    return victims
