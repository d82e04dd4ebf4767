"""Scheduler and runner together: however often sequences lose their blocks, and how, their outputs are the same."""

import random
import threading
from dataclasses import replace

import pytest
import torch

from engine.core import invariants
from engine.core.config import PreemptionChoice, SchedulerConfig
from engine.core.costs import Prices, StepCosts
from engine.core.events import Finished, TokensEmitted
from engine.core.scheduler import Scheduler
from engine.core.types import FinishReason, PathNode, Request, SamplingParams
from engine.model.loader import load_model
from engine.runner.model_runner import ModelRunner
from tests.model import tiny_llama
from tests.runner.time_slices import Anyone, TimeSlices

NUM_BLOCKS = 26
BLOCK_SIZE = 4
# A link at which a few blocks are cheaper to compute again, and many are not.
PRICES = Prices(
    StepCosts(base_ns=1e6, prefill_token_ns=1e6, decode_ns=1e6),
    copy_out_block_ns=4e5,
    copy_in_block_ns=4e5,
    copy_launch_ns=6e6,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model())
    return load_model(folder, dtype="float32", device="cpu")


class Served:
    """Serves requests to their end, poisoning every block of either pool the moment it is free."""

    def __init__(self, model, slice_steps, *, drafts=None, batch_invariant=False, **fields) -> None:
        config = SchedulerConfig(
            **{
                "max_num_seqs": 6,
                "max_num_batched_tokens": 24,
                "block_size": BLOCK_SIZE,
                "num_device_blocks": NUM_BLOCKS,
                "max_model_len": 100,
                "growth_reserve_tokens": 0,
                "min_resident_steps": 0,
                "max_preemptions": 1000,
            }
            | fields
        )
        self.runner = ModelRunner(model, config, drafts, batch_invariant=batch_invariant)
        self.scheduler = Scheduler(config, TimeSlices(slice_steps), Anyone())
        self.scheduler.calibrate(PRICES, 0)
        self.now = 0
        self.outputs = {}
        self.logprobs = {}
        self.num_steps = 0
        self._copy_ended = threading.Event()
        self.runner.wake_on_completion(self._copy_ended.set)
        self._free = [set(), set()]
        self._poison()

    @property
    def stats(self):
        return self.scheduler.stats()

    def add(self, request: Request) -> None:
        self.outputs[request.generation_id] = []
        self.scheduler.add(request, self.now)

    def step(self) -> None:
        self.now += 1_000_000
        plan = self.scheduler.plan(self.now)
        if plan is not None:
            self.num_steps += 1
            events = self.compute(plan)
        else:
            assert self.scheduler.num_copies_in_flight, "unfinished requests, and nothing to do for them"
            assert self._copy_ended.wait(30)
            self._copy_ended.clear()
            events = self.scheduler.complete_copies(self.runner.take_completed(), self.now)
        self._take(events)
        invariants.check(self.scheduler)

    def compute(self, plan):
        """What came of the open plan."""
        return self.scheduler.commit(self.runner.execute(plan), self.now)

    def run(self) -> dict[str, list[int]]:
        while self.scheduler.has_unfinished or self.scheduler.num_copies_in_flight:
            self.step()
        assert self.scheduler.policy_fault is None
        assert self.stats.num_free_blocks == self.scheduler.config.num_device_blocks
        assert self.stats.num_free_host_blocks == self.scheduler.config.num_host_blocks
        return self.outputs

    def abort(self, generation_id: str) -> None:
        self._take(self.scheduler.abort(generation_id, FinishReason.CANCELLED, self.now))
        del self.outputs[generation_id]

    def _take(self, events) -> None:
        for event in events:
            if isinstance(event, TokensEmitted):
                self.outputs[event.key.generation_id] += event.token_ids
                self.logprobs.setdefault(event.key.generation_id, []).extend(event.logprobs)
            elif isinstance(event, Finished):
                assert event.reason in (FinishReason.LENGTH, FinishReason.CANCELLED)
        self._poison()

    def _poison(self) -> None:
        blocks, cache = self.scheduler.lifecycle.blocks, self.runner.kv_cache
        for index, (pool, tensor) in enumerate(((blocks.pool, cache.blocks), (blocks.host_pool, cache.host_blocks))):
            now_free = set(pool.free_ids)
            for block_id in now_free - self._free[index]:
                tensor[block_id] = torch.nan
            self._free[index] = now_free


def make_request(index: int, num_tenants: int = 2) -> Request:
    rng = random.Random(index)
    sampling = SamplingParams(temperature=0.0) if index % 3 else SamplingParams(seed=index, presence_penalty=0.5)
    return Request(
        generation_id=f"r{index}",
        path=(PathNode(f"tenant-{index % num_tenants}", 1.0),),
        prompt_token_ids=tuple(rng.randrange(2, tiny_llama.VOCABULARY_SIZE) for _ in range(rng.randrange(1, 60))),
        max_output_tokens=rng.randrange(1, 24),
        arrived_at=0,
        sampling=sampling,
    )


@pytest.fixture(scope="module")
def expected(model):
    """What each request says with the engine to itself."""
    outputs = {}
    for index in range(12):
        alone = Served(model, 1000)
        alone.add(make_request(index))
        outputs |= alone.run()
    return outputs


MODES = {
    "recompute": {"preemption_mode": PreemptionChoice.RECOMPUTE},
    "swap": {"preemption_mode": PreemptionChoice.SWAP, "num_host_blocks": 80, "partial_swap": False},
    "partial swap": {"preemption_mode": PreemptionChoice.SWAP, "num_host_blocks": 80},
    "cheaper": {"num_host_blocks": 80},
    "short of host blocks": {"num_host_blocks": 9},
    "slow link": {"num_host_blocks": 80, "link_share": 0.3},
}


@pytest.mark.parametrize("slice_steps", [1, 2, 5])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
def test_tenants_that_take_turns_get_what_they_get_alone(model, expected, mode, slice_steps):
    served = Served(model, slice_steps, **mode)
    for index in range(12):
        served.add(make_request(index))
    assert served.run() == expected
    stats = served.stats
    assert stats.num_preemptions > 0
    recomputed = sum(tenant.num_recomputed_tokens for tenant in stats.tenants)
    if mode.get("preemption_mode") is PreemptionChoice.RECOMPUTE:
        assert stats.num_swaps == 0
        assert recomputed > 0
    elif mode.get("preemption_mode") is PreemptionChoice.SWAP:
        assert stats.num_swaps > 0


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
def test_prompts_that_begin_alike_share_blocks_and_say_what_they_say_alone(model, mode):
    beginning = make_request(11).prompt_token_ids[:24]
    requests = []
    for index in range(10):
        request = make_request(index)
        prompt = (*beginning[: 8 * (index % 4)], *request.prompt_token_ids[:30])
        requests.append(replace(request, prompt_token_ids=prompt))
    alone = {}
    for request in requests:
        served = Served(model, 1000)
        served.add(request)
        alone |= served.run()
    served = Served(model, 3, enable_prefix_caching=True, **mode)
    for request in requests:
        served.add(request)
        served.step()

    assert served.run() == alone
    assert served.stats.totals.num_found_tokens > 0
    again = Served(model, 1000, enable_prefix_caching=True, num_device_blocks=100)
    for _ in range(2):  # at the second time all of it is there but for the last block
        again.add(replace(requests[3], generation_id=f"r{len(again.outputs)}"))
        again.run()
    assert again.outputs == {"r0": alone["r3"], "r1": alone["r3"]}
    assert again.stats.totals.num_found_tokens >= len(requests[3].prompt_token_ids) - BLOCK_SIZE - 1


@pytest.mark.parametrize("mode", [MODES["recompute"], MODES["partial swap"]], ids=["recompute", "partial swap"])
def test_default_model_says_the_same_however_often_its_requests_take_turns(default_model, mode):
    requests = [replace(make_request(index), sampling=SamplingParams(temperature=0.0)) for index in (1, 2, 4, 5)]
    outputs = []
    for slice_steps, fields in ((1000, {"num_device_blocks": 100}), (2, mode)):
        served = Served(default_model, slice_steps, **fields)
        for request in requests:
            served.add(replace(request, max_output_tokens=6))
        outputs.append(served.run())
        assert bool(served.stats.num_preemptions) == (fields is mode)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("seed", range(4))
def test_cancelled_at_any_moment_they_leave_both_pools_empty(model, expected, seed):
    rng = random.Random(seed)
    served = Served(model, 2, **MODES["partial swap"])
    for index in range(12):
        served.add(make_request(index))
    victims = rng.sample(range(12), 6)
    while served.scheduler.has_unfinished or served.scheduler.num_copies_in_flight:
        if victims and rng.random() < 0.2 and f"r{victims[-1]}" in served.outputs:
            served.abort(f"r{victims.pop()}")
        if served.scheduler.has_unfinished or served.scheduler.num_copies_in_flight:
            served.step()
    outputs = served.run()
    assert all(outputs[generation_id] == expected[generation_id] for generation_id in outputs)
