"""The whole engine without its doors: scheduler, runner and kernels, on a model of random weights.

Tenants take turns of one step, so that somebody's blocks are swapped at each; every block of either pool is poisoned
the moment it is free. What is said must be what float64 arithmetic without a cache says.
"""

import random
import threading
from collections import abc
from dataclasses import replace

import torch

from engine.core import invariants
from engine.core.config import PreemptionChoice, SchedulerConfig
from engine.core.costs import Prices, StepCosts
from engine.core.events import Event, Finished, TokensEmitted
from engine.core.scheduler import Scheduler
from engine.core.types import FinishReason, PathNode, Request, SamplingParams
from engine.model.info import LoadedModel
from engine.runner.model_runner import ModelRunner
from tests.device.exact import ExactModel
from tests.device.kernel_checks import Check
from tests.device.models import TINY, make_model
from tests.runner.time_slices import Anyone, TimeSlices

_COPY_TIMEOUT_S = 60
_PRICES = Prices(StepCosts(1e6, 1e5, 0.0, 1e6, 0.0, 0.0), 1e3, 1e3, 1e3)  # swapping costs next to nothing


class Served:
    """Serves requests to their end. `num_swaps` counts what was swapped out."""

    def __init__(self, model: LoadedModel, config: SchedulerConfig, slice_steps: int, *, cuda_graphs: bool) -> None:
        self.runner = ModelRunner(model, config, cuda_graphs=cuda_graphs)
        self.runner.warm_up()
        self._scheduler = Scheduler(config, TimeSlices(slice_steps), Anyone())
        self._scheduler.calibrate(_PRICES, 0)
        self._now = 0
        self._outputs: dict[str, list[int]] = {}
        self._copy_ended = threading.Event()
        self.runner.wake_on_completion(self._copy_ended.set)
        self._free: list[set[int]] = [set(), set()]
        self._poison()

    @property
    def num_swaps(self) -> int:
        return self._scheduler.stats().num_swaps

    def run(self, requests: abc.Iterable[Request]) -> dict[str, list[int]]:
        """What each one said. Raises AssertionError if one ended in an error, or a block was lost."""
        for request in requests:
            self._outputs[request.generation_id] = []
            self._scheduler.add(request, self._now)
        while self._scheduler.has_unfinished or self._scheduler.num_copies_in_flight:
            self._step()
        stats, config = self._scheduler.stats(), self._scheduler.config
        assert self._scheduler.policy_fault is None
        assert (stats.num_free_blocks, stats.num_free_host_blocks) == (config.num_device_blocks, config.num_host_blocks)
        return self._outputs

    def _step(self) -> None:
        self._now += 1_000_000
        plan = self._scheduler.plan(self._now)
        if plan is not None:
            events = self._scheduler.commit(self.runner.execute(plan), self._now)
        else:
            assert self._copy_ended.wait(_COPY_TIMEOUT_S), "nothing to do, and no copy that ends"
            self._copy_ended.clear()
            events = self._scheduler.complete_copies(self.runner.take_completed(), self._now)
        self._take(events)
        invariants.check(self._scheduler)

    def _take(self, events: abc.Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, TokensEmitted):
                self._outputs[event.key.generation_id] += event.token_ids
            elif isinstance(event, Finished):
                assert event.reason is FinishReason.LENGTH, event
        self._poison()

    def _poison(self) -> None:
        blocks, cache = self._scheduler.lifecycle.blocks, self.runner.kv_cache
        for index, (pool, tensor) in enumerate(((blocks.pool, cache.blocks), (blocks.host_pool, cache.host_blocks))):
            now_free = set(pool.free_ids)
            if new := sorted(now_free - self._free[index]):
                tensor[torch.tensor(new, device=tensor.device)] = torch.nan
            self._free[index] = now_free


def make_requests(num_requests: int, max_prompt: int, max_output: int, vocabulary_size: int) -> list[Request]:
    """Greedy ones, of two tenants."""
    rng = random.Random(3)
    return [
        Request(
            generation_id=f"r{index}",
            path=(PathNode(f"tenant-{index % 2}", 1.0),),
            prompt_token_ids=tuple(rng.randrange(2, vocabulary_size) for _ in range(rng.randrange(1, max_prompt))),
            max_output_tokens=rng.randrange(2, max_output),
            arrived_at=0,
            sampling=SamplingParams(temperature=0.0),
        )
        for index in range(num_requests)
    ]


def check_engine(device: torch.device, *, is_large: bool, window: int | None = None) -> list[Check]:
    """Without preemption and swapped at every step, steps recorded and not: the same greedy text, the exact one."""
    size = 4 if is_large else 1
    shape = replace(TINY, hidden_size=64 * size, head_dim=16 * size, intermediate_size=96 * size)
    if window is not None:
        shape = replace(shape, sliding_window=window, sliding_layers=frozenset({1}))
    model = make_model(shape, device, torch.float32, spread=0.2 / size**0.5)
    exact_model = ExactModel(shape, model.weights)
    requests = make_requests(3 * size, 10 * size, 6 * size, shape.vocabulary_size)
    with torch.inference_mode():
        expected = {
            request.generation_id: exact_model.greedy(request.prompt_token_ids, request.max_output_tokens)
            for request in requests
        }
    calm = SchedulerConfig(
        max_num_seqs=6 if is_large else 2,
        max_num_batched_tokens=24 if is_large else 8,
        block_size=4,
        num_device_blocks=120 * size,
        max_model_len=100 * size,
        growth_reserve_tokens=0,
        min_resident_steps=0,
        max_preemptions=10**6,
    )
    longest = max(len(request.prompt_token_ids) + request.max_output_tokens for request in requests)
    pressed = replace(
        calm,
        num_device_blocks=-(-longest // 4),
        num_host_blocks=200 * size,
        preemption_mode=PreemptionChoice.SWAP,
        partial_swap=False,
    )
    name = "" if window is None else f", window {window}"
    checks = []
    for case, config, graphs in (
        ("steps recorded", calm, True),
        ("steps not recorded", calm, False),
        ("swapped at every step", pressed, True),
    ):
        served = Served(model.loaded, config, 1, cuda_graphs=graphs)
        num_wrong = sum(said != expected[generation_id] for generation_id, said in served.run(requests).items())
        is_pressed = served.num_swaps > len(requests)
        checks.append(Check("engine, exact text", f"{case}{name}", float(num_wrong), 0.0))
        is_right = is_pressed == (config is pressed)
        checks.append(Check("engine, swaps", f"{case}{name}: {served.num_swaps}", 0.0 if is_right else 1.0, 0.0))
    return checks
