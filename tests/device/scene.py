"""A pool of NaN in which a few sequences own blocks all over it, and a step that they take part in."""

from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from engine.core.config import SchedulerConfig
from engine.core.plan import RowStart, StepPlan
from engine.core.types import BlockId, SamplingParams, SequenceKey
from engine.kernels.triton.chunks import TritonChunks
from engine.model.config import ModelConfig
from engine.model.info import LoadedModel
from engine.runner.inputs import step_arrays
from engine.runner.kv_cache import KvCache
from engine.runner.row_table import RowTable
from engine.runner.step_columns import StepColumns
from engine.runner.triton_planner import TritonPlanner
from tests.device import exact
from tests.device.models import TINY

_LAYERS = 2
_LAYER = 1  # of which the keys are: an offset into each block
Mix = abc.Sequence[tuple[int, int]]
"""The first position and the number of tokens of each chunk."""


@dataclass(frozen=True, slots=True)
class Case:
    """What attention is asked for; the mix is the step."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    mix: Mix
    window: int | None = None

    def __str__(self) -> str:
        heads = f"{self.num_heads}/{self.num_kv_heads} heads of {self.head_dim}"
        window = "" if self.window is None else f", window {self.window}"
        return f"{heads}, blocks of {self.block_size}{window}, {str(self.dtype).removeprefix('torch.')}"

    @property
    def model_config(self) -> ModelConfig:
        heads = {"num_heads": self.num_heads, "num_kv_heads": self.num_kv_heads, "head_dim": self.head_dim}
        return replace(TINY, num_layers=_LAYERS, context_tokens=1 << 20, **heads)


class Scene:
    """`cached` [B, S, 2, KH, D] is a layer's part of the pool; `plan` is the step as the planner has
    it, which is public for the launches that it may be given."""

    def __init__(self, case: Case, device: torch.device, *, num_padding: int = 0, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.case = case
        model = LoadedModel(None, case.model_config, None, device, case.dtype)  # type: ignore[arg-type]  # has neither
        num_blocks = [-(-(start + count) // case.block_size) for start, count in case.mix]
        config = SchedulerConfig(
            max_num_seqs=len(case.mix),
            max_num_batched_tokens=max(len(case.mix), sum(count for _, count in case.mix)),
            block_size=case.block_size,
            num_device_blocks=2 * sum(num_blocks) + 1,
            max_model_len=max(start + count for start, count in case.mix) + 1,
        )
        self.kv_cache, rows = KvCache(model, config), RowTable(config)
        self.kv_cache.blocks.fill_(torch.nan)
        self.cached = self.kv_cache.layers[_LAYER]
        self.block_ids = self._deal(num_blocks, config.num_device_blocks)
        self._fill(device)
        self._columns = StepColumns(16 * (config.max_num_batched_tokens + num_padding) + 64, device)
        self.planner = TritonPlanner(model, self.kv_cache, rows, self._columns)
        plan = self._step_plan()
        rows.apply(plan)
        self._arrays, self._num_padding = step_arrays(plan, rows, case.block_size), num_padding
        self.plan = self.plan_again()
        num_rows = case.num_heads + 2 * case.num_kv_heads
        num_tokens = len(self._arrays.positions) + num_padding
        self.positions = torch.from_numpy(np.pad(self._arrays.positions, (0, num_padding))).to(device)
        self.qkv = torch.randn(num_tokens, num_rows, case.head_dim, device=device).to(case.dtype)
        self.frequencies = torch.tensor(model.config.rope_frequencies(), device=device)

    def plan_again(self) -> TritonChunks:
        """The step as the planner has it now."""
        self._columns.begin()
        plan = self.planner.plan(self._arrays.chunks, self._arrays.slots, self._num_padding)
        self.planner.put_new_blocks()
        self._columns.send()
        self.planner.update_tables()
        return plan

    @property
    def rotation(self) -> tuple[Tensor, Tensor]:
        angles = self.positions[:, None].float() * self.frequencies
        return angles.cos(), angles.sin()

    def expected(self) -> tuple[Tensor, Tensor]:
        """What attention should be [T, H, D] float64, padding zero, and the layer's blocks afterwards."""
        case, num_kv_heads = self.case, self.case.num_kv_heads
        rotated = exact.rotate(self.qkv[:, :-num_kv_heads], *self.rotation).to(case.dtype)
        queries, keys, values = rotated[:, : case.num_heads], rotated[:, case.num_heads :], self.qkv[:, -num_kv_heads:]
        cached, attended, token = self.cached.clone(), torch.zeros_like(queries, dtype=torch.float64), 0
        for (start, count), block_ids in zip(case.mix, self.block_ids, strict=True):
            for index in range(count):
                slot = cached[block_ids[(start + index) // case.block_size], (start + index) % case.block_size]
                slot[0], slot[1] = keys[token + index], values[token + index]
            seen = cached[block_ids].flatten(0, 1)[: start + count]
            tokens = slice(token, token + count)
            attended[tokens] = exact.attention(queries[tokens], seen[:, 0], seen[:, 1], start, case.window)
            token += count
        return attended, cached

    def _deal(self, num_blocks: abc.Sequence[int], num_all: int) -> list[list[int]]:
        order = torch.randperm(num_all).tolist()
        return [[order.pop() for _ in range(count)] for count in num_blocks]

    def _fill(self, device: torch.device) -> None:
        """Keys and values up to where each sequence starts."""
        for (start, _), block_ids in zip(self.case.mix, self.block_ids, strict=True):
            for position in range(start):
                slot = self.cached[block_ids[position // self.case.block_size], position % self.case.block_size]
                slot.copy_(torch.randn(slot.shape, device=device))

    def _step_plan(self) -> StepPlan:
        sampling = SamplingParams()
        started = tuple(
            RowStart(
                row, SequenceKey("", row), (1,) * (start + count), start + count, tuple(map(BlockId, ids)), sampling
            )
            for row, ((start, count), ids) in enumerate(zip(self.case.mix, self.block_ids, strict=True))
        )
        starts, counts = zip(*self.case.mix, strict=True)
        rows = tuple(range(len(starts)))
        return StepPlan(0, (), started, (), rows, starts, counts, (True,) * len(rows))


@contextmanager
def poisoned() -> abc.Iterator[None]:
    """Memory that torch hands out as it is holds NaN, or numbers that are no result."""
    poisoning = {name: _poisoning(getattr(torch, name)) for name in ("empty", "empty_like")}
    with mock.patch.multiple(torch, **poisoning):
        yield


def _poisoning(make: abc.Callable[..., Tensor]) -> abc.Callable[..., Tensor]:
    def made(*args: object, **kwargs: object) -> Tensor:
        tensor = make(*args, **kwargs)
        return tensor.fill_(torch.nan if tensor.is_floating_point() else -77 if tensor.dtype != torch.bool else 0)

    return made
