"""A runner without tensors that notices every mistake of a scheduler.

It keeps what a real one keeps: rows, a paged cache, and the host's copies of blocks. As keys and values do, the content
of a slot depends on its token and on all tokens before it: it is a hash of the token and of the slot before, which is
read through the block table. Each chunk reads its whole context back and compares, and the next token is a hash of the
last slot, so that a wrong block, a lost token or one too many changes the text from there on.

Copies take a seeded number of steps. Until a copy has ended, both sides of it are *fenced*: to read, write, free or
copy such a block is a fault, and the block that is written holds poison.

Drafts are proposed by chance, some right and some wrong, and verified as a real runner does it.
"""

import hashlib
import math
import random
from collections import Counter, abc
from dataclasses import dataclass, field

from engine.core.plan import Candidate, RowStart, StepOutput, StepPlan, TokenLogprobs
from engine.core.types import BlockId, CopyId, HostBlockId, Request, SequenceKey
from engine.sim.reference_copies import Copies, RunnerFaultError

VOCABULARY_SIZE = 97
POISON = b"poison"


def slot_after(previous: bytes, token_id: int) -> bytes:
    """What the cache holds for a token whose predecessor's slot is `previous`, b"" for the first one."""
    return hashlib.blake2b(previous + token_id.to_bytes(4, "big"), digest_size=8).digest()


def sample(last_slot: bytes, seed: int) -> int:
    """The token that follows a context, the same on every machine."""
    digest = hashlib.blake2b(last_slot + seed.to_bytes(8, "big"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % VOCABULARY_SIZE


def likeliest(last_slot: bytes, seed: int) -> tuple[Candidate, ...]:
    """All tokens with their log-probabilities behind a context, the likeliest first, the same on every machine."""
    digest = hashlib.blake2b(last_slot + seed.to_bytes(8, "big"), digest_size=8).digest()
    chances = random.Random(digest)  # noqa: S311 - likewise
    weights = [chances.random() ** 4 for _ in range(VOCABULARY_SIZE)]
    total = math.fsum(weights)
    tokens = [Candidate(token_id, math.log(weight / total)) for token_id, weight in enumerate(weights) if weight]
    return tuple(sorted(tokens, key=lambda token: -token.logprob))


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
    num_candidates: int = 0
    drafts: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Found:
    """What comes of a step, by row; see StepOutput. Written by ReferenceRunner."""

    accepted: dict[int, tuple[int, ...]] = field(default_factory=dict)
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    candidates: dict[int, tuple[Candidate, ...]] = field(default_factory=dict)
    proposed: dict[int, int] = field(default_factory=dict)

    def accept(self, row_id: int, row: Row, token_ids: tuple[int, ...]) -> None:
        self.accepted[row_id] = token_ids
        if row.num_logprobs is not None:
            tops = [((token_id, -0.5),) * row.num_logprobs for token_id in token_ids]
            self.logprobs[row_id] = tuple(TokenLogprobs(-0.5, top) for top in tops)

    def search(self, row_id: int, row: Row, last_slot: bytes) -> None:
        self.candidates[row_id] = found = likeliest(last_slot, row.seed)[: row.num_candidates]
        if row.num_logprobs is not None:
            self.logprobs[row_id] = tuple(TokenLogprobs(each.logprob, found[: row.num_logprobs]) for each in found)

    def output(self, step_id: int, copied: tuple[CopyId, ...]) -> StepOutput:
        return StepOutput(
            step_id,
            self.accepted,
            self.logprobs,
            self.errors,
            copied,
            proposed=self.proposed,
            candidates=self.candidates,
        )


class ReferenceRunner:
    """Executes plans one chunk after the other. `errors` makes rows of these generations fail at their next chunk.
    `draft_hits` is how often a draft is right, of those behind right ones."""

    def __init__(self, block_size: int, *, max_copy_delay: int = 0, seed: int = 0, draft_hits: float = 0.7) -> None:
        self.block_size = block_size
        self._draft_hits = draft_hits
        self._draft_random = random.Random(seed)  # noqa: S311 - likewise
        self.rows: dict[int, Row] = {}
        self.cache: dict[BlockId, list[bytes]] = {}
        self.errors: dict[str, str] = {}
        self.num_steps = 0
        self.shared: set[BlockId] = set()  # blocks of several rows
        self.copies = Copies(self.cache, max_copy_delay, random.Random(seed))  # noqa: S311 - traffic, not secrets

    def execute(self, plan: StepPlan) -> StepOutput:
        """The plan's output. Raises RunnerFaultError."""
        self.num_steps += 1
        self._change_rows(plan)
        self._check_columns(plan)
        for copy in plan.copies:
            self.copies.start(copy, self.num_steps)
        none = (0,) * len(plan.rows)
        columns = (plan.starts, plan.num_tokens, plan.samples, plan.num_drafts or none, plan.draft_limits or none)
        chunks = list(zip(plan.rows, *columns, strict=True))
        for row_id, start, num_tokens, _, num_drafts, _ in chunks:
            _take_drafts(self._row(row_id), num_drafts)
            self._write(self._row(row_id), start, start + num_tokens)
        found = _Found()
        for row_id, start, num_tokens, samples, num_drafts, limit in chunks:
            row = self._row(row_id)
            self._read(row, start + num_tokens)
            _check_end(row, start + num_tokens, samples)
            if row.key.generation_id in self.errors:
                found.errors[row_id] = self.errors.pop(row.key.generation_id)
            elif samples and row.num_candidates:
                found.search(row_id, row, self._slot(row, len(row.token_ids) - 1))
            elif samples:
                found.accept(row_id, row, self._verify(row, num_drafts))
                found.proposed[row_id] = self._propose(row, limit)
        return found.output(plan.step_id, self.copies.end(self.num_steps))

    def wait(self) -> tuple[CopyId, ...]:
        """A step's time passes without a plan. The copies that ended in it."""
        self.num_steps += 1
        return self.copies.end(self.num_steps)

    def poison(self, block_ids: abc.Iterable[BlockId], host_block_ids: abc.Iterable[HostBlockId] = ()) -> None:
        """These blocks are free: reading what they held is a fault from now on, and so is a copy that holds one."""
        for block_id in block_ids:
            self.copies.check(block_id)
            self.cache.pop(block_id, None)
        for host_id in host_block_ids:
            if host_id in self.copies.fenced_host:
                raise RunnerFaultError(f"host block {host_id} is free before copy {self.copies.fenced_host[host_id]}")
            self.copies.host.pop(host_id, None)

    def _change_rows(self, plan: StepPlan) -> None:
        for row_id in plan.stopped:
            if self.rows.pop(row_id, None) is None:
                raise RunnerFaultError(f"row {row_id} is stopped but was never started")
        used = {block_id for row in self.rows.values() for block_id in row.block_ids} if plan.block_copies else set()
        for source, target in plan.block_copies:
            if target in used:
                raise RunnerFaultError(f"block {target} is overwritten by block {source}, but a row has it")
            self.copies.on_device(source, target)
        for start in plan.started:
            if start.row in self.rows:
                raise RunnerFaultError(f"row {start.row} of {start.key} is still taken by {self.rows[start.row].key}")
            self.rows[start.row] = _new_row(start)
        for row_id, block_ids in plan.new_blocks:
            self._row(row_id).block_ids.extend(block_ids)
        for row_id, token_id in plan.chosen:
            if not self._row(row_id).num_candidates:
                raise RunnerFaultError(f"a token is chosen for {self._row(row_id).key}, which draws its own")
            self._row(row_id).token_ids.append(token_id)
        owners = Counter([block_id for row in self.rows.values() for block_id in row.block_ids])
        self.shared = {block_id for block_id, num_rows in owners.items() if num_rows > 1}

    def _check_columns(self, plan: StepPlan) -> None:
        if not plan.rows and not plan.copies:
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
            block_id = self._block(row, position)
            self.copies.check(block_id)
            if block_id in self.shared:
                raise RunnerFaultError(f"{row.key} writes block {block_id}, which another row reads")
            block = self.cache.setdefault(block_id, [POISON] * self.block_size)
            block[position % self.block_size] = slot

    def _read(self, row: Row, end: int) -> None:
        """Every slot of the context is right."""
        slot = b""
        for position in range(end):
            slot = slot_after(slot, row.token_ids[position])
            if self._slot(row, position) != slot:
                raise RunnerFaultError(f"{row.key} reads {self._slot(row, position)!r} at {position}, not {slot!r}")

    def _verify(self, row: Row, num_drafts: int) -> tuple[int, ...]:
        """The drafts up to the first wrong one, and the token that follows them. Blocks beyond it are free again."""
        num_known = len(row.token_ids) - num_drafts
        drafts, row.token_ids = row.token_ids[num_known:], row.token_ids[:num_known]
        for draft in (*drafts, None):
            row.token_ids.append(sample(self._slot(row, len(row.token_ids) - 1), row.seed))
            if row.token_ids[-1] != draft:
                break
        if num_drafts:
            del row.block_ids[-(-len(row.token_ids) // self.block_size) :]
        return tuple(row.token_ids[num_known:])

    def _propose(self, row: Row, limit: int) -> int:
        slot = slot_after(self._slot(row, len(row.token_ids) - 2), row.token_ids[-1])
        for _ in range(self._draft_random.randint(0, limit)):
            is_right = self._draft_random.random() < self._draft_hits
            row.drafts.append((sample(slot, row.seed) + (not is_right)) % VOCABULARY_SIZE)
            slot = slot_after(slot, row.drafts[-1])
        return len(row.drafts)

    def _slot(self, row: Row, position: int) -> bytes:
        block_id = self._block(row, position)
        self.copies.check(block_id)
        block = self.cache.get(block_id)
        return POISON if block is None else block[position % self.block_size]

    def _block(self, row: Row, position: int) -> BlockId:
        index = position // self.block_size
        if index >= len(row.block_ids):
            raise RunnerFaultError(f"{row.key} has no block for token {position}")
        return row.block_ids[index]


class ConstantRunner:
    """Answers every row that samples with the same token and looks at nothing, for runs that are about order alone.
    Copies end in the step that starts them."""

    def execute(self, plan: StepPlan) -> StepOutput:
        """The plan's output."""
        rows = [row for row, samples in zip(plan.rows, plan.samples, strict=True) if samples]
        copy_ids = tuple(copy.copy_id for copy in plan.copies)
        return StepOutput(plan.step_id, dict.fromkeys(rows, (1,)), completed_copies=copy_ids)


def _check_end(row: Row, end: int, samples: bool) -> None:
    if samples != (end == len(row.token_ids)):
        raise RunnerFaultError(f"{row.key} samples={samples} at {end} of {len(row.token_ids)} tokens")


def _take_drafts(row: Row, num_drafts: int) -> None:
    """The first drafts of `row` stand behind its known tokens, the others are forgotten."""
    if num_drafts > len(row.drafts):
        raise RunnerFaultError(f"{row.key} has {len(row.drafts)} drafts, not {num_drafts}")
    row.token_ids += row.drafts[:num_drafts]
    row.drafts = []


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
        num_candidates=start.num_candidates,
    )
