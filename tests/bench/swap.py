"""The copy engine against one big copy, and the choice between swap and recomputation against always doing one of them.

Bandwidth: blocks scattered over both pools go out and come back while nothing else runs, against one copy of as many
bytes that lie together, the faster of torch's and numpy's, on one thread too. Chooser: two tenants take turns on a pool
that holds the requests of one, all of one context length, with the choice left open and forced either way; what is
measured is the time until the last request has ended. The link of a CPU is so fast that recomputing never pays, so that
all of it is done once more behind a slower link, at which the middle length is near a tie.
"""

import random
import threading
import time
from collections import abc
from dataclasses import replace

import numpy as np
import torch

from engine.core.config import PreemptionChoice, SchedulerConfig
from engine.core.costs import Prices
from engine.core.plan import BlockCopy, CopyDirection, StepPlan
from engine.core.scheduler import Scheduler
from engine.core.types import BlockId, CopyId, HostBlockId, Nanos, PathNode, Request, SamplingParams
from engine.model.loader import LoadedModel, load_model
from engine.runner.block_copier import Mover
from engine.runner.measurement import measure
from engine.runner.model_runner import ModelRunner
from tests.bench.report import Report, arguments
from tests.runner.time_slices import Anyone, TimeSlices

BLOCK_SIZE = 16
COPIED_BLOCKS = 512
CONTEXTS = (64, 192, 512)
OUTPUT_TOKENS = 32
RESIDENT = 3  # requests of each tenant, all of which the pool holds at their full length
STEP_TOKENS = 256
TURN_STEPS = 12
FORCED = (PreemptionChoice.SWAP, PreemptionChoice.RECOMPUTE)


class SlowLink:
    """A mover that takes `block_ns` for each block, at least, and leaves the processor to others meanwhile."""

    def __init__(self, mover: Mover, block_ns: float) -> None:
        self._mover = mover
        self._block_ns = block_ns

    def prepare(self) -> abc.Callable[[BlockCopy], int]:
        move = self._mover.prepare()

        def slowly(copy: BlockCopy) -> int:
            elapsed_ns = move(copy)
            wanted_ns = int(self._block_ns * len(copy.device_block_ids))
            time.sleep(max(0, wanted_ns - elapsed_ns) / 1e9)
            return max(elapsed_ns, wanted_ns)

        return slowly


def bandwidth(model: LoadedModel, num_blocks: int, seed: int) -> dict[str, float]:
    """One repetition: both directions, each against the big copy right beside it."""
    config = SchedulerConfig(1, 16, BLOCK_SIZE, num_blocks, num_blocks * BLOCK_SIZE, num_host_blocks=num_blocks)
    runner = ModelRunner(model, config)
    cache = runner.kv_cache
    cache.host_blocks.zero_()  # memory is made when it is first used
    device, host = cache.blocks[:num_blocks], cache.host_blocks
    num_bytes = host.nbytes
    rng = random.Random(seed)
    rates = {}
    for direction in CopyDirection:
        target, source = (host, device) if direction is CopyDirection.OUT else (device, host)
        big_s = min(copy_big(target, source), copy_big(target, source, use_numpy=True))
        device_ids, host_ids = (rng.sample(range(num_blocks), num_blocks) for _ in range(2))
        copy = BlockCopy(CopyId(0), direction, tuple(map(BlockId, device_ids)), tuple(map(HostBlockId, host_ids)))
        rates[direction] = num_bytes / big_s, num_bytes / copy_scattered(runner, copy)
    return {
        "bandwidth_over_big_copy": min(engine / big for big, engine in rates.values()),
        "bytes_per_second": min(engine for _, engine in rates.values()),
        **{f"bytes_per_second_{direction.value}": engine for direction, (_, engine) in rates.items()},
        **{f"big_copy_bytes_per_second_{direction.value}": big for direction, (big, _) in rates.items()},
    }


def copy_big(target: torch.Tensor, source: torch.Tensor, *, use_numpy: bool = False) -> float:
    """Seconds of one copy of everything."""
    to, of = (tensor.reshape(-1).view(torch.uint8) for tensor in (target, source))
    started = time.perf_counter()
    if use_numpy:
        np.copyto(to.numpy(), of.numpy())
    else:
        to.copy_(of)
    return time.perf_counter() - started


def copy_scattered(runner: ModelRunner, copy: BlockCopy) -> float:
    """Seconds from the plan until the thread of the steps could know that the copy has ended."""
    ended = threading.Event()
    runner.wake_on_completion(ended.set)
    started = time.perf_counter()
    runner.execute(StepPlan(1, copies=(copy,)))
    ended.wait()
    elapsed = time.perf_counter() - started
    runner.take_completed()
    return elapsed


def make_requests(context: int, num_requests: int, seed: int, vocabulary_size: int) -> list[Request]:
    rng = random.Random(seed)
    return [
        Request(
            generation_id=f"{context}-{index}",
            path=(PathNode(f"tenant-{index % 2}", 1.0),),
            prompt_token_ids=tuple(rng.randrange(1000, vocabulary_size) for _ in range(context)),
            max_output_tokens=OUTPUT_TOKENS,
            arrived_at=Nanos(0),
            sampling=SamplingParams(temperature=0.0),
        )
        for index in range(num_requests)
    ]


def pressed_config(context: int) -> SchedulerConfig:
    """A pool that holds what one tenant has, and nothing that keeps a request from being preempted."""
    num_blocks = RESIDENT * -(-(context + OUTPUT_TOKENS) // BLOCK_SIZE)
    return SchedulerConfig(
        max_num_seqs=2 * RESIDENT,
        max_num_batched_tokens=STEP_TOKENS,
        block_size=BLOCK_SIZE,
        num_device_blocks=num_blocks,
        max_model_len=context + OUTPUT_TOKENS,
        growth_reserve_tokens=0,
        num_host_blocks=4 * num_blocks,
        min_resident_steps=0,
        max_preemptions=1000,
    )


class Served:
    """One engine that serves the same requests in each of the modes."""

    def __init__(self, model: LoadedModel, context: int, slow_link_ns: float | None) -> None:
        self._config = pressed_config(context)
        self._runner = ModelRunner(model, self._config)
        if slow_link_ns is not None:
            copier = self._runner._copier
            copier._mover = SlowLink(copier._mover, slow_link_ns)
        self._ended = threading.Event()
        self.prices: Prices = measure(self._runner, self._config, budget_s=2.0).prices
        self._runner.wake_on_completion(self._ended.set)

    def serve(self, requests: abc.Iterable[Request], mode: PreemptionChoice) -> tuple[float, dict[str, int]]:
        """Seconds until the last request has ended, and what was done to them."""
        config = replace(self._config, preemption_mode=mode)
        scheduler = Scheduler(config, TimeSlices(TURN_STEPS), Anyone())
        started = time.monotonic_ns()

        def now() -> Nanos:
            return Nanos(time.monotonic_ns() - started)

        scheduler.calibrate(self.prices, now())
        for request in requests:
            scheduler.add(request, now())
        while scheduler.has_unfinished or scheduler.num_copies_in_flight:
            plan = scheduler.plan(now())
            if plan is not None:
                scheduler.commit(self._runner.execute(plan), now())
                continue
            assert self._ended.wait(30), "nothing to compute, and no copy ends"
            self._ended.clear()
            scheduler.complete_copies(self._runner.take_completed(), now())
        stats = scheduler.stats()
        recomputed = sum(tenant.num_recomputed_tokens for tenant in stats.tenants)
        return now() / 1e9, {"preemptions": stats.num_preemptions, "swaps": stats.num_swaps, "recomputed": recomputed}


def compare_modes(served: Served, context: int, repetition: int, vocabulary_size: int) -> dict[str, float]:
    """One repetition; which mode comes first changes, so that drift favours none."""
    requests = make_requests(context, 2 * RESIDENT, repetition, vocabulary_size)
    modes = [PreemptionChoice.AUTO, *FORCED]
    shift = repetition % len(modes)
    metrics = {}
    for mode in modes[shift:] + modes[:shift]:
        metrics[f"seconds_{mode.value}"], counts = served.serve(requests, mode)
        metrics |= {f"{name}_{mode.value}": float(count) for name, count in counts.items()}
    best = min(metrics[f"seconds_{mode.value}"] for mode in FORCED)
    return {"chooser_over_best": best / metrics["seconds_auto"]} | metrics


def tie_block_ns(prices: Prices, context: int) -> float:
    """What a block must take on the link for moving a sequence out and in to take as long as computing it."""
    num_tokens = context + OUTPUT_TOKENS // 2
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    return prices.step.chunk_ns(0, num_tokens) / num_blocks / 2


def add_chooser(
    report: Report,
    model: LoadedModel,
    contexts: abc.Sequence[int],
    repetitions: int,
    suffix: str,
    block_ns: float | None,
) -> dict[int, Prices]:
    """The figures of one link, those of the worst length under the bare name. Returns what was measured by length."""
    prices, ratios = {}, []
    for context in contexts:
        served = Served(model, context, block_ns)
        prices[context] = served.prices
        samples = [compare_modes(served, context, index, model.info.vocabulary_size) for index in range(repetitions)]
        for sample in samples:
            report.add(**{f"{name}_{context}{suffix}": value for name, value in sample.items()})
        ratios.append([sample["chooser_over_best"] for sample in samples])
    for ratio in map(min, zip(*ratios, strict=True)):
        report.add(**{f"chooser_over_best{suffix}": ratio})
    return prices


def main() -> None:
    parser = arguments("Copy engine and the choice between swap and recomputation.")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    repetitions = 1 if args.quick else 3
    contexts = CONTEXTS[:2] if args.quick else CONTEXTS
    torch.set_num_threads(args.threads)
    model = load_model(None, dtype="bfloat16", device="cpu")
    report = Report(
        "swap",
        {
            "model": model.info.name,
            "dtype": model.info.dtype,
            "threads": args.threads,
            "block_bytes": BLOCK_SIZE * model.info.kv_bytes_per_token,
            "copied_blocks": COPIED_BLOCKS,
            "contexts": list(contexts),
            "output_tokens": OUTPUT_TOKENS,
            "resident": RESIDENT,
        },
    )
    bandwidth(model, COPIED_BLOCKS, 0)  # warm-up
    for repetition in range(max(repetitions, 5)):
        report.add(**bandwidth(model, COPIED_BLOCKS, repetition))
    middle = contexts[len(contexts) // 2]
    prices = add_chooser(report, model, contexts, repetitions, "", None)
    add_chooser(report, model, contexts, repetitions, "_slow_link", tie_block_ns(prices[middle], middle))
    report.publish(args.json)


if __name__ == "__main__":
    main()
