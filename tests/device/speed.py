"""What attention, steps and copies take, against the bandwidth of a plain copy measured beside them."""

from collections import abc
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.core.config import SchedulerConfig
from engine.core.plan import CopyDirection
from engine.kernels.triton import attention
from engine.kernels.triton.chunks import TritonChunks
from engine.kernels.triton.launches import AttentionShape, Launches, choose_num_splits, queries_per_tile
from engine.model.config import ModelConfig
from engine.runner.block_copier import PieceCopier, Run
from engine.runner.kv_cache import KvCache
from engine.runner.measurement import decodes
from engine.runner.model_runner import ModelRunner
from tests.device.clock import Clock
from tests.device.models import RandomModel, make_model

BLOCK_SIZE = 16
Choose = abc.Callable[[AttentionShape], Launches]


@dataclass(frozen=True, slots=True)
class Timing:
    """`rate` in `unit` is what was reached, `part` of the limit that the measured copy, or what is named, sets."""

    name: str
    case: str
    milliseconds: float
    rate: float
    unit: str
    part: float | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is timed: what a card can do in a minute, or next to nothing, to see that it runs.

    loads     (rows, keys of each) of decodes
    prompts   (first position, tokens) of chunks
    models    name -> (shape, rows of the steps, keys of each)
    """

    copied_bytes: int
    loads: tuple[tuple[int, int], ...]
    prompts: tuple[tuple[int, int], ...]
    models: abc.Mapping[str, tuple[ModelConfig, tuple[int, ...], int]]
    num_swapped_blocks: int
    num_processors: int


def copy_gbps(device: torch.device, clock: Clock, num_bytes: int) -> Timing:
    """Bytes read and written by a copy inside the device's memory."""
    source = torch.zeros(num_bytes // 4, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    ms = clock.median_ms(lambda: target.copy_(source))
    return Timing("copy in device memory", f"{num_bytes >> 20} MiB", ms, 2 * num_bytes / ms / 1e6, "GB/s")


class AttentionLoad:
    """Random keys of many rows, in blocks that lie all over a pool."""

    def __init__(self, shape: AttentionShape, num_rows: int, num_keys: int, device: torch.device) -> None:
        width = -(-num_keys // shape.block_size)
        self.shape, self.device = shape, device
        slot = (shape.block_size, 2, shape.num_kv_heads, shape.head_dim)
        self.cached = torch.randn((num_rows * width, *slot), device=device, dtype=shape.dtype)
        order = torch.randperm(num_rows * width, dtype=torch.int32, device=device)
        self.table = order.view(num_rows, width)

    def decodes(self, launches: Launches, num_processors: int) -> tuple[Tensor, TritonChunks]:
        """A token of each row behind all of its keys."""
        num_rows, width = self.table.shape
        rows = torch.arange(num_rows, device=self.device)
        last = torch.full_like(rows, width * self.shape.block_size - 1)
        splits = choose_num_splits(num_rows, self.shape.num_kv_heads, int(last[0]) + 1, num_processors)
        return self._step(num_rows, launches, splits, decodes=torch.stack((rows, last, rows)))

    def prompt(self, launches: Launches, start: int, num_tokens: int) -> tuple[Tensor, TritonChunks]:
        """A chunk of the first row."""
        size = queries_per_tile(self.shape, launches.prefill)
        first = torch.arange(0, num_tokens, size, device=self.device).flip(0)
        counts = (num_tokens - first).clamp(max=size)
        return self._step(num_tokens, launches, 1, tiles=torch.stack((first * 0, first + start, first, counts)))

    def _step(
        self,
        num_tokens: int,
        launches: Launches,
        num_splits: int,
        *,
        decodes: Tensor | None = None,
        tiles: Tensor | None = None,
    ) -> tuple[Tensor, TritonChunks]:
        none = torch.zeros((4, 0), dtype=torch.int64, device=self.device)
        decodes, tiles = none[:3] if decodes is None else decodes, none if tiles is None else tiles
        plan = TritonChunks(self.table, none[0], decodes, tiles, num_splits, self.shape, launches)
        num_heads = self.shape.num_kv_heads * self.shape.num_shared
        return torch.randn(num_tokens, num_heads, self.shape.head_dim, device=self.device).to(self.shape.dtype), plan


def time_attention(
    sizes: Sizes, dtype: torch.dtype, device: torch.device, clock: Clock, choose: Choose, copy_rate: float
) -> abc.Iterator[Timing]:
    """Decodes by the bytes of their keys, against the copy; chunks by their products."""
    for name, (config, _, _) in sizes.models.items():
        shape = AttentionShape(config.num_queries_per_kv_head, config.num_kv_heads, config.head_dim, BLOCK_SIZE, dtype)
        launches = choose(shape)
        for num_rows, num_keys in sizes.loads:
            load = AttentionLoad(shape, num_rows, num_keys, device)
            queries, plan = load.decodes(launches, sizes.num_processors)
            ms = clock.median_ms(lambda: attention.paged_attention(queries, load.cached, plan))  # noqa: B023  called here
            rate = load.cached.nbytes / ms / 1e6
            yield Timing("decode attention", f"{name}, {num_rows} x {num_keys}", ms, rate, "GB/s", rate / copy_rate)
        for start, num_tokens in sizes.prompts:
            load = AttentionLoad(shape, 1, start + num_tokens, device)
            queries, plan = load.prompt(launches, start, num_tokens)
            ms = clock.median_ms(lambda: attention.paged_attention(queries, load.cached, plan))  # noqa: B023  called here
            num_pairs = num_tokens * start + num_tokens * (num_tokens + 1) / 2
            rate = 4 * num_pairs * config.num_heads * config.head_dim / ms / 1e9
            yield Timing("prefill attention", f"{name}, {num_tokens} behind {start}", ms, rate, "TFLOP/s")


def time_steps(
    sizes: Sizes, dtype: torch.dtype, device: torch.device, clock: Clock, copy_rate: float
) -> abc.Iterator[Timing]:
    """Whole decode steps, from plan to tokens, against reading the weights and the keys once."""
    for name, (config, num_rows, num_keys) in sizes.models.items():
        model = make_model(config, device, dtype, spread=0.02)
        settings = SchedulerConfig(
            max_num_seqs=max(num_rows),
            max_num_batched_tokens=max(512, *num_rows),
            block_size=BLOCK_SIZE,
            num_device_blocks=max(num_rows) * (num_keys // BLOCK_SIZE + 1),
            max_model_len=2 * num_keys,
        )
        runner = ModelRunner(model.loaded, settings)
        runner.warm_up()
        for count in num_rows:
            yield _time_step(name, model, runner, settings, (count, num_keys), clock, copy_rate)
        del runner, model
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _time_step(
    name: str,
    model: RandomModel,
    runner: ModelRunner,
    settings: SchedulerConfig,
    load: tuple[int, int],
    clock: Clock,
    copy_rate: float,
) -> Timing:
    num_rows, num_keys = load
    plan = decodes(settings, num_rows, num_keys)
    runner.execute(plan)
    again = replace(plan, started=())
    ms = clock.median_wall_ms(lambda: runner.execute(again))
    config = model.loaded.config
    read = sum(weight.nbytes for weight in model.weights.values())
    if not config.tied_embeddings:
        read -= model.weights["model.embed_tokens.weight"].nbytes  # a few rows of it
    read += num_rows * num_keys * model.loaded.info.kv_bytes_per_token
    return Timing(
        "decode step",
        f"{name}, {num_rows} x {num_keys}",
        ms,
        1e3 * num_rows / ms,
        "tokens/s",
        read / ms / 1e6 / copy_rate,
    )


def time_swaps(sizes: Sizes, dtype: torch.dtype, device: torch.device, clock: Clock) -> abc.Iterator[Timing]:
    """Blocks between the pools, adjacent and scattered, by copies and by the kernel, against one large copy."""
    for name, (config, _, _) in sizes.models.items():
        num_blocks = sizes.num_swapped_blocks
        settings = SchedulerConfig(1, 16, BLOCK_SIZE, 2 * num_blocks, BLOCK_SIZE, num_host_blocks=2 * num_blocks)
        shape_only = replace(
            make_model(replace(config, num_layers=1, vocabulary_size=2), device, dtype).loaded, config=config
        )
        cache = KvCache(shape_only, settings)
        copier = PieceCopier(cache, gathers=True)
        whole: list[Run] = [(0, 0, num_blocks)]
        scattered: list[Run] = [(2 * index, 2 * (num_blocks - 1 - index), 1) for index in range(num_blocks)]
        num_bytes = num_blocks * cache.blocks[0].nbytes
        for direction in CopyDirection:
            ways: dict[str, abc.Callable[[], object]] = {
                "one run": lambda: copier.copy_run(direction, whole[0]),  # noqa: B023  called here
                "scattered, copies": lambda: [copier.copy_run(direction, run) for run in scattered],  # noqa: B023
                "scattered, kernel": lambda: copier.gather(direction, scattered),  # noqa: B023
                "scattered, as chosen": lambda: copier.copy(direction, scattered),  # noqa: B023
            }
            limit = 0.0
            for way, work in ways.items():
                ms = clock.median_wall_ms(work)
                rate = num_bytes / ms / 1e6
                limit = limit or rate
                case = f"{name}, {direction.value}, {num_blocks} blocks of {cache.blocks[0].nbytes >> 10} KiB, {way}"
                yield Timing("swap", case, ms, rate, "GB/s", rate / limit)
