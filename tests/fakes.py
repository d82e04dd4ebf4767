"""A runner without tensors that notices every mistake of a scheduler.

It keeps what a real one keeps: rows and a paged cache. As keys and values do, the content of a slot depends on its
token and on all tokens before it: it is a hash of the token and of the slot before, which is read through the block
table. Each chunk reads its whole context back and compares, and the next token is a hash of the last slot, so that a
wrong block, a lost token or one too many changes the text from there on.
"""

import hashlib
from collections import abc
from dataclasses import dataclass, field

from engine.core.plan import RowStart, StepOutput, StepPlan, TokenLogprobs
from engine.core.types import BlockId, Request, SequenceKey

VOCABULARY_SIZE = 97
POISON = b"poison"


class RunnerFaultError(AssertionError):
    """A plan asked for something that would have corrupted a real runner's state."""


def slot_after(previous: bytes, token_id: int) -> bytes:
    """What the cache holds for a token whose predecessor's slot is `previous`, b"" for the first one."""
    return hashlib.blake2b(previous + token_id.to_bytes(4, "big"), digest_size=8).digest()


def sample(last_slot: bytes, seed: int) -> int:
    """The token that follows a context, the same on every machine."""
    digest = hashlib.blake2b(last_slot + seed.to_bytes(8, "big"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % VOCABULARY_SIZE


def expected_output(request: Request) -> list[int]:
    """What is generated for a request that nothing disturbs."""
    slot = b""
    for token_id in request.prompt_token_ids:
        slot = slot_after(slot, token_id)
    output: list[int] = []
    while len(output) < request.max_output_tokens:
        output.append(sample(slot, request.sampling.seed))
        if output[-1] in request.stop_token_ids:
            break
        slot = slot_after(slot, output[-1])
    return output


@dataclass(slots=True)
class Row:
    """A sequence as the runner knows it."""

    key: SequenceKey
    token_ids: list[int]
    block_ids: list[BlockId]
    seed: int
    num_logprobs: int | None


@dataclass(slots=True)
class ReferenceRunner:
    """Executes plans one chunk after the other. `errors` makes rows of these generations fail at their next chunk."""

    block_size: int
    rows: dict[int, Row] = field(default_factory=dict)
    cache: dict[BlockId, list[bytes]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    num_steps: int = 0

    def execute(self, plan: StepPlan) -> StepOutput:
        """The plan's output. Raises RunnerFaultError."""
        self.num_steps += 1
        self._change_rows(plan)
        self._check_columns(plan)
        accepted: dict[int, tuple[int, ...]] = {}
        logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        errors: dict[int, str] = {}
        chunks = list(zip(plan.rows, plan.starts, plan.num_tokens, plan.samples, strict=True))
        for row_id, start, num_tokens, _ in chunks:
            self._write(self._row(row_id), start, start + num_tokens)
        for row_id, start, num_tokens, samples in chunks:
            row = self._row(row_id)
            last_slot = self._read(row, start + num_tokens)
            if samples != (start + num_tokens == len(row.token_ids)):
                raise RunnerFaultError(
                    f"{row.key} samples={samples} at {start + num_tokens} of {len(row.token_ids)} tokens"
                )
            if row.key.generation_id in self.errors:
                errors[row_id] = self.errors.pop(row.key.generation_id)
            elif samples:
                token_id = sample(last_slot, row.seed)
                row.token_ids.append(token_id)
                accepted[row_id] = (token_id,)
                if row.num_logprobs is not None:
                    logprobs[row_id] = (TokenLogprobs(-0.5, ((token_id, -0.5),) * row.num_logprobs),)
        return StepOutput(plan.step_id, accepted, logprobs, errors)

    def poison(self, block_ids: abc.Iterable[BlockId]) -> None:
        """These blocks are free: reading what they held is a fault from now on."""
        for block_id in block_ids:
            self.cache.pop(block_id, None)

    def _change_rows(self, plan: StepPlan) -> None:
        for row_id in plan.stopped:
            if self.rows.pop(row_id, None) is None:
                raise RunnerFaultError(f"row {row_id} is stopped but was never started")
        for start in plan.started:
            if start.row in self.rows:
                raise RunnerFaultError(f"row {start.row} of {start.key} is still taken by {self.rows[start.row].key}")
            self.rows[start.row] = _new_row(start)
        for row_id, block_ids in plan.new_blocks:
            self._row(row_id).block_ids.extend(block_ids)
        owned = [block_id for row in self.rows.values() for block_id in row.block_ids]
        if len(owned) != len(set(owned)):
            raise RunnerFaultError("two rows share a block")

    def _check_columns(self, plan: StepPlan) -> None:
        if not plan.rows:
            raise RunnerFaultError("the plan is empty")
        if len(set(plan.rows)) != len(plan.rows):
            raise RunnerFaultError(f"a row has two chunks: {plan.rows}")
        is_decode = [num_tokens == 1 for num_tokens in plan.num_tokens]
        if is_decode != sorted(is_decode, reverse=True):
            raise RunnerFaultError(f"decodes do not come first: {plan.num_tokens}")

    def _row(self, row_id: int) -> Row:
        if row_id not in self.rows:
            raise RunnerFaultError(f"row {row_id} was never started")
        return self.rows[row_id]

    def _write(self, row: Row, start: int, end: int) -> None:
        if not start < end <= len(row.token_ids):
            raise RunnerFaultError(f"{row.key} computes [{start}, {end}) of {len(row.token_ids)} tokens")
        slot = self._slot(row, start - 1) if start else b""
        for position in range(start, end):
            slot = slot_after(slot, row.token_ids[position])
            block = self.cache.setdefault(self._block(row, position), [POISON] * self.block_size)
            block[position % self.block_size] = slot

    def _read(self, row: Row, end: int) -> bytes:
        """The last slot of the context, after all of them were found to be right."""
        slot = b""
        for position in range(end):
            slot = slot_after(slot, row.token_ids[position])
            if self._slot(row, position) != slot:
                raise RunnerFaultError(f"{row.key} reads {self._slot(row, position)!r} at {position}, not {slot!r}")
        return slot

    def _slot(self, row: Row, position: int) -> bytes:
        block = self.cache.get(self._block(row, position))
        return POISON if block is None else block[position % self.block_size]

    def _block(self, row: Row, position: int) -> BlockId:
        index = position // self.block_size
        if index >= len(row.block_ids):
            raise RunnerFaultError(f"{row.key} has no block for token {position}")
        return row.block_ids[index]


class ConstantRunner:
    """Answers every row that samples with the same token and looks at nothing, for runs that are about order alone."""

    def execute(self, plan: StepPlan) -> StepOutput:
        rows = [row for row, samples in zip(plan.rows, plan.samples, strict=True) if samples]
        return StepOutput(plan.step_id, dict.fromkeys(rows, (1,)))


def _new_row(start: RowStart) -> Row:
    if not 0 < start.num_prompt_tokens <= len(start.token_ids):
        raise RunnerFaultError(
            f"{start.key} starts with {len(start.token_ids)} tokens, {start.num_prompt_tokens} of prompt"
        )
    return Row(
        key=start.key,
        token_ids=list(start.token_ids),
        block_ids=list(start.block_ids),
        seed=start.sampling.seed,
        num_logprobs=start.sampling.num_logprobs,
    )
