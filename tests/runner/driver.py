"""Plays the scheduler by hand: gives rows blocks in random order, builds plans, and poisons what is free with NaN.

That holds for both pools: a block is poisoned when it is free, which it is only once the copy that leaves it has ended.
"""

import random
import threading
from collections import abc
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.core.config import SchedulerConfig
from engine.core.plan import BlockCopy, CopyDirection, RowStart, StepOutput, StepPlan
from engine.core.types import BlockId, CopyId, HostBlockId, SamplingParams, SequenceKey
from engine.model.info import LoadedModel
from engine.runner.model_runner import ModelRunner

GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class DrivenRow:
    """Written by Driver. `is_known` says whether the runner has been told of the row; `host_block_ids` are its last
    blocks, behind `block_ids`, while they are on the host."""

    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    num_computed_tokens: int = 0
    block_ids: list[BlockId] = field(default_factory=list)
    is_known: bool = False
    host_block_ids: list[HostBlockId] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_pending(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens


class Driver:
    """`logits` [R, V] are the model's in the last step, one for each row that sampled, in the order of the plan."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_rows: int = 16,
        num_blocks: int = 256,
        block_size: int = 16,
        num_host_blocks: int = 0,
        batch_invariant: bool = False,
    ) -> None:
        self._config = SchedulerConfig(
            max_num_seqs=num_rows,
            max_num_batched_tokens=4096,
            block_size=block_size,
            num_device_blocks=num_blocks,
            max_model_len=model.config.context_tokens,
            num_host_blocks=num_host_blocks,
        )
        self.runner = ModelRunner(model, self._config, batch_invariant=batch_invariant)
        self.rows: dict[int, DrivenRow] = {}
        self.logits = torch.empty(0)
        self._head = model.module.lm_head
        self._hooks = [
            model.module.register_forward_hook(self._keep_logits),
            model.module.likeliest_head.register_forward_hook(self._make_logits),
        ]
        self._step_id = 0
        self._stopped: list[int] = []
        self._free = [BlockId(block) for block in range(num_blocks)]
        self._poison(self._free)
        random.Random(7).shuffle(self._free)
        self._free_host = [HostBlockId(block) for block in range(num_host_blocks)]
        self._poison_host(self._free_host)
        random.Random(8).shuffle(self._free_host)
        self._block_copies: list[tuple[BlockId, BlockId]] = []
        self._num_copies = 0
        self._new_copies: list[BlockCopy] = []
        self._moving: dict[CopyId, tuple[BlockCopy, DrivenRow | None]] = {}
        self._copy_ended = threading.Event()
        self.runner.wake_on_completion(self._copy_ended.set)

    def close(self) -> None:
        """Let go of the model, which other tests go on using."""
        for hook in self._hooks:
            hook.remove()

    def add(self, row: int, prompt: abc.Sequence[int], sampling: SamplingParams = GREEDY) -> DrivenRow:
        """A sequence takes `row`; it starts with its first chunk."""
        self.rows[row] = DrivenRow(list(prompt), len(prompt), sampling)
        return self.rows[row]

    def remove(self, row: int) -> DrivenRow:
        """The sequence ends; its blocks are poisoned."""
        self._release(self.rows[row])
        self._stopped.append(row)
        return self.rows.pop(row)

    def preempt(self, row: int) -> None:
        """The sequence loses its blocks and is computed again from its first token."""
        self._release(self.rows[row])
        self._stopped.append(row)

    def copy(self, row: int, to: int, num_tokens: int) -> DrivenRow:
        """A sequence of the same tokens takes the row `to`, and goes on behind the first `num_tokens` of them: all its
        blocks are copied."""
        state = self.rows[row]
        num_blocks = -(-num_tokens // self._config.block_size)
        self.rows[to] = copied = DrivenRow(
            list(state.token_ids),
            state.num_prompt_tokens,
            state.sampling,
            num_tokens,
            [self._free.pop() for _ in range(num_blocks)],
        )
        self._block_copies += zip(state.block_ids, copied.block_ids, strict=False)
        return copied

    def swap_out(self, row: int, num_blocks: int) -> None:
        """The sequence leaves its row; its last `num_blocks` go to the host with the next step."""
        state = self.rows[row]
        leaving = state.block_ids[len(state.block_ids) - num_blocks :]
        assert num_blocks > 0, "nothing to swap"
        assert not state.host_block_ids, "it is swapped out already"
        state.host_block_ids = [self._free_host.pop() for _ in leaving]
        self._start_copy(CopyDirection.OUT, leaving, state.host_block_ids, None)
        del state.block_ids[len(state.block_ids) - num_blocks :]
        state.is_known = False
        self._stopped.append(row)

    def swap_in(self, row: int) -> None:
        """The blocks of a swapped sequence come back with the next step; it can go on once `is_moving` is False."""
        state = self.rows[row]
        fresh = [self._free.pop() for _ in state.host_block_ids]
        self._start_copy(CopyDirection.IN, fresh, state.host_block_ids, state)

    def is_moving(self, row: int) -> bool:
        """Whether blocks of the sequence are being copied."""
        host_block_ids = set(self.rows[row].host_block_ids)
        return any(host_block_ids & set(copy.host_block_ids) for copy, _ in self._moving.values())

    def finish_copies(self) -> None:
        """Every copy has ended: the new ones are started in a plan of their own."""
        self.step({})
        while self._moving:
            assert self._copy_ended.wait(30)
            self._copy_ended.clear()
            self._complete(self.runner.take_completed())

    def step(self, num_tokens: abc.Mapping[int, int]) -> StepOutput:
        """Compute that many tokens of each row, in this order, and keep what was sampled."""
        started, new_blocks = self._allocate(num_tokens)
        chunks = [(row, self.rows[row].num_computed_tokens, count) for row, count in num_tokens.items()]
        plan = StepPlan(
            step_id=self._step_id,
            stopped=tuple(self._stopped),
            started=started,
            new_blocks=new_blocks,
            rows=tuple(row for row, _, _ in chunks),
            starts=tuple(start for _, start, _ in chunks),
            num_tokens=tuple(count for _, _, count in chunks),
            samples=tuple(start + count == len(self.rows[row].token_ids) for row, start, count in chunks),
            copies=tuple(self._new_copies),
            block_copies=tuple(self._block_copies),
        )
        self._new_copies = []
        self._block_copies = []
        output = self.runner.execute(plan)
        assert output.step_id == self._step_id
        assert set(output.accepted) | set(output.errors) == {
            row for row, samples in zip(plan.rows, plan.samples, strict=True) if samples
        }
        self._complete(output.completed_copies)
        self._step_id += 1
        self._stopped.clear()
        for row, _, count in chunks:
            self.rows[row].num_computed_tokens += count
            self.rows[row].token_ids.extend(output.accepted.get(row, ()))
        return output

    def prefill(self, rows: abc.Sequence[int], chunk_size: int) -> None:
        """Compute the prompts side by side, in chunks of at most `chunk_size`, until each row sampled a token."""
        while any(not self.rows[row].output for row in rows):
            self.step({row: min(chunk_size, self.rows[row].num_pending) for row in rows if not self.rows[row].output})

    def prefill_again(self, row: int, chunk_size: int) -> None:
        """Compute a preempted sequence up to its last known token, and one token more."""
        num_known = len(self.rows[row].token_ids)
        while len(self.rows[row].token_ids) == num_known:
            self.step({row: min(chunk_size, self.rows[row].num_pending)})

    def decode(self, rows: abc.Sequence[int], num_steps: int) -> list[Tensor]:
        """One token of each row per step. Returns each step's logits."""
        logits = []
        for _ in range(num_steps):
            self.step(dict.fromkeys(rows, 1))
            logits.append(self.logits)
        return logits

    def _keep_logits(self, _module: object, _inputs: object, logits: Tensor) -> None:
        self.logits = logits.clone()

    def _make_logits(self, _module: object, inputs: tuple[Tensor], found: tuple[Tensor, Tensor]) -> None:
        """The logits of a step that did without them, of which it must have found out what is so."""
        self.logits = self._head(*inputs)
        token_ids, is_finite = found
        largest = self.logits == self.logits.amax(-1, keepdim=True)
        assert torch.equal(is_finite, self.logits.isfinite().all(-1))
        assert torch.equal(token_ids[is_finite], largest.int().argmax(-1)[is_finite])

    def _allocate(
        self, num_tokens: abc.Mapping[int, int]
    ) -> tuple[tuple[RowStart, ...], tuple[tuple[int, tuple[BlockId, ...]], ...]]:
        started, new_blocks = [], []
        for row, count in num_tokens.items():
            state = self.rows[row]
            num_needed = -(-(state.num_computed_tokens + count) // self._config.block_size)
            fresh = [self._free.pop() for _ in range(num_needed - len(state.block_ids))]
            state.block_ids += fresh
            if not state.is_known:
                key = SequenceKey(f"generation-{row}", 0)
                tokens, blocks = tuple(state.token_ids), tuple(state.block_ids)
                started.append(RowStart(row, key, tokens, state.num_prompt_tokens, blocks, state.sampling))
                state.is_known = True
            elif fresh:
                new_blocks.append((row, tuple(fresh)))
        return tuple(started), tuple(new_blocks)

    def _start_copy(
        self,
        direction: CopyDirection,
        device_ids: abc.Sequence[BlockId],
        host_ids: abc.Sequence[HostBlockId],
        state: DrivenRow | None,
    ) -> None:
        copy = BlockCopy(CopyId(self._num_copies), direction, tuple(device_ids), tuple(host_ids))
        self._num_copies += 1
        self._new_copies.append(copy)
        self._moving[copy.copy_id] = copy, state

    def _complete(self, copy_ids: abc.Iterable[CopyId]) -> None:
        for copy_id in copy_ids:
            copy, state = self._moving.pop(copy_id)
            if state is None:
                self._poison(copy.device_block_ids)
                self._free.extend(copy.device_block_ids)
            else:
                state.block_ids += copy.device_block_ids
                state.host_block_ids = []
                self._poison_host(copy.host_block_ids)
                self._free_host.extend(copy.host_block_ids)

    def _release(self, state: DrivenRow) -> None:
        self._poison(state.block_ids)
        self._free.extend(state.block_ids)
        random.Random(len(self._free)).shuffle(self._free)
        state.block_ids = []
        state.num_computed_tokens = 0
        state.is_known = False

    def _poison(self, block_ids: abc.Sequence[BlockId]) -> None:
        self.runner.kv_cache.blocks[torch.tensor(block_ids, dtype=torch.int64)] = torch.nan

    def _poison_host(self, block_ids: abc.Sequence[HostBlockId]) -> None:
        self.runner.kv_cache.host_blocks[torch.tensor(block_ids, dtype=torch.int64)] = torch.nan
