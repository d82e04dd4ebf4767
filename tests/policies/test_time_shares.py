"""One tenant's deep prompt beside another's decoders, in virtual time: each side has half of the engine's time."""

import itertools

import pytest

from engine.core.costs import Prices, StepCosts
from engine.core.events import Event, TokensEmitted
from engine.core.plan import CopyDirection
from engine.core.scheduler import Scheduler
from engine.core.types import Nanos, Request
from engine.plugins import load_preemption_policy, load_scheduling_policy
from engine.sim.cost_lines import CostLine
from engine.sim.engine import SimulatedEngine
from tests.builders import make_config, make_request

MS = 1_000_000
PROMPT = 1_024
NUM_DECODERS = 8
DUE = Nanos(2_000 * MS)
# At the end of the prompt a token takes ten times as long as at its start.
COSTS = StepCosts(
    base_ns=10 * MS, prefill_token_ns=MS, prefill_key_ns=0.009 * MS, decode_ns=MS, decode_key_ns=0.002 * MS
)


class Heard:
    """When each token of each request was told, and how long each step was."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.steps: list[int] = []

    def on_refused(self, request: Request, reason: str, now: Nanos) -> None:
        raise AssertionError(reason)

    def on_events(self, events: list[Event], now: Nanos) -> None:
        for event in events:
            if isinstance(event, TokensEmitted):
                self.tokens.setdefault(event.key.generation_id, []).append(now)

    def on_step(self, started_at: Nanos, now: Nanos, num_steps: int) -> None:
        self.steps.append(now - started_at)

    def on_copy(self, num_blocks: int, direction: CopyDirection, now: Nanos) -> None:
        raise AssertionError("the pool holds them all")

    def rate(self, since: int, until: int) -> float:
        """The decoders' tokens per nanosecond."""
        moments = [at for name, told in self.tokens.items() if name != "prompt" for at in told]
        return sum(since < at <= until for at in moments) / (until - since)


def serve(*, num_decoders: int) -> Heard:
    """The decoders from the start, the prompt at `DUE` until its first token, and the decoders again for as long."""
    config = make_config(
        max_num_seqs=16, max_num_batched_tokens=64, num_device_blocks=1_024, block_size=16, max_model_len=4_096
    )
    scheduler = Scheduler(config, load_scheduling_policy("fair", {}), load_preemption_policy("over_served", {}))
    line, heard = CostLine("line", Prices(COSTS)), Heard()
    engine = SimulatedEngine(scheduler, line, heard)
    engine.calibrate(line)
    for index in range(num_decoders):
        engine.submit(make_request(f"d{index}", tenant="d", prompt=32, max_output_tokens=1_800), Nanos(0))
    engine.run_until(DUE)
    engine.submit(make_request("prompt", tenant="p", prompt=PROMPT, max_output_tokens=1, arrived_at=DUE), DUE)
    until = DUE
    while "prompt" not in heard.tokens:
        until = Nanos(until + 10 * MS)
        engine.run_until(until)
    engine.run_until(Nanos(heard.tokens["prompt"][0] + DUE))
    return heard


@pytest.fixture(scope="module")
def alone() -> Heard:
    return serve(num_decoders=0)


@pytest.fixture(scope="module")
def beside() -> Heard:
    return serve(num_decoders=NUM_DECODERS)


def test_the_decoders_keep_half_of_their_rate(beside: Heard):
    first = beside.tokens["prompt"][0]
    solo = 2 / (1 / beside.rate(DUE // 2, DUE) + 1 / beside.rate(first, first + DUE))

    assert beside.rate(DUE, first) / solo >= 0.95 / 2


def test_the_prompt_takes_twice_as_long_as_alone(alone: Heard, beside: Heard):
    alone_ns, beside_ns = (heard.tokens["prompt"][0] - DUE for heard in (alone, beside))

    assert alone_ns / beside_ns >= 0.95 / 2


def test_no_decoder_waits_longer_than_a_step_with_a_chunk(beside: Heard):
    first = beside.tokens["prompt"][0]
    told = beside.tokens["d0"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(told) if DUE < later <= first]

    assert max(gaps) == max(beside.steps)


def test_alone_the_prompt_has_full_chunks(alone: Heard):
    assert len(alone.steps) == PROMPT / 64
