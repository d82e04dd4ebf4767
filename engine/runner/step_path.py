"""How a step is computed on each kind of device: what the layer stack is given, and which steps were recorded."""

import os
import sys

import torch
from torch import Tensor

from engine.core.config import SchedulerConfig
from engine.core.plan import StepPlan
from engine.kernels.cpu.disk_cache import cache_folder
from engine.kernels.ops import judge
from engine.kernels.triton import runs_on
from engine.model.forward_batch import ForwardBatch
from engine.model.info import LoadedModel
from engine.runner.attention_planner import GatheredPlanner
from engine.runner.decode_graphs import CallRecorder, CudaRecorder, DecodeGraphs, Recorder, ladder
from engine.runner.inputs import InputBuilder, Planner, StepInputs
from engine.runner.kv_cache import KvCache
from engine.runner.paged_planner import MIN_PACKED_QUERIES, PagedPlanner
from engine.runner.row_table import RowTable
from engine.runner.triton_inputs import TritonInputs


class StepPath:
    """From a plan to its inputs, and from these to logits."""

    def __init__(
        self,
        model: LoadedModel,
        kv_cache: KvCache,
        rows: RowTable,
        config: SchedulerConfig,
        *,
        cuda_graphs: bool,
        batch_invariant: bool,
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._triton: TritonInputs | None = None
        sizes: tuple[int, ...] = ()
        if runs_on(model.device.type):
            sizes = ladder(config.max_num_seqs) if cuda_graphs else ()
            self._triton = TritonInputs(model, kv_cache, rows, config, sizes)
        if batch_invariant and model.device.type != "cpu":
            raise ValueError(f"batch-invariant steps are computed on a CPU only, not on {model.device.type}")
        # Packed keys give other bits than keys read where they lie, and how long a chunk is, its neighbours decide.
        min_packed_queries = sys.maxsize if batch_invariant else MIN_PACKED_QUERIES
        self._inputs: InputBuilder | TritonInputs = self._triton or _plain_inputs(
            model, kv_cache, rows, config.block_size, min_packed_queries
        )
        self._graphs = DecodeGraphs(self._forward, _recorder(model.device), sizes)

    def build(self, plan: StepPlan) -> StepInputs:
        """The inputs of `plan`, which has at least one chunk and is already applied to the rows. The blocks that it
        enters hold nothing that would be read."""
        inputs = self._inputs.build(plan)
        if len(inputs.entered_blocks):
            self._kv_cache.clear(inputs.entered_blocks)
        return inputs

    def logits(self, inputs: StepInputs) -> Tensor:
        """[R, V] float32 of the rows that sample, valid until the next call."""
        logits = self._graphs.run(inputs.padded_size, inputs.batch)
        return self._forward(inputs.batch) if logits is None else logits

    def likeliest(self, inputs: StepInputs) -> tuple[Tensor, Tensor]:
        """Of each row that samples the first of the largest logits [R] int64, R > 0, and whether all are finite [R]
        bool."""
        logits = self._graphs.run(inputs.padded_size, inputs.batch)
        if logits is not None:
            return judge(logits)
        found: tuple[Tensor, Tensor] = self._model.module.likeliest(inputs.batch, self._kv_cache.layers)
        return found

    @torch.inference_mode()
    def prepare(self) -> None:
        """Make what is made once, behind a first step: launches are chosen, decodes recorded. Before the first plan."""
        if self._triton is not None:
            if self._model.device.type == "cuda":
                from engine.kernels.triton.tuning import tuned_launches

                planner, folder = self._triton.planner, cache_folder(os.environ)
                planner.launches = tuned_launches(planner.shape, self._model.device, folder)
            self._graphs.record(self._triton.padding)

    def _forward(self, batch: ForwardBatch) -> Tensor:
        logits: Tensor = self._model.module(batch, self._kv_cache.layers)
        return logits


def _plain_inputs(
    model: LoadedModel, kv_cache: KvCache, rows: RowTable, block_size: int, min_packed_queries: int
) -> InputBuilder:
    is_cpu = model.device.type == "cpu"
    planner: Planner = (
        PagedPlanner(model, rows, min_packed_queries) if is_cpu else GatheredPlanner(model, kv_cache, rows)
    )
    return InputBuilder(rows, planner, block_size, model.device)


def _recorder(device: torch.device) -> Recorder:
    return CudaRecorder(device) if device.type == "cuda" else CallRecorder()
