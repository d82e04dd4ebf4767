"""Prompts that begin alike share the blocks of what they have in common: found when a head comes in, read by all.

Only full blocks are shared, and only once a step that computed them is committed, so that nobody writes what another
reads; at least the last token of a sequence is always computed, as its logits are needed. A block is *named* when it is
full. What is unnamed is its sequence's alone: a second copy of what another sequence computed meanwhile, too. Of one
more block behind those the first tokens may be found, see `tails`: they are copied.

Source: the hash chain of full blocks, vLLM's automatic prefix caching; salts as in its `cache_salt`.
"""

from collections import abc
from typing import Generic, NamedTuple, TypeVar

from engine.core import block_refs
from engine.core.block_names import BlockName, names_after, root_of
from engine.core.block_pool import BlockPool
from engine.core.cached_blocks import CachedBlocks, Label
from engine.core.costs import StepCosts
from engine.core.sequence import Hit, Sequence
from engine.core.stats import CacheCounts
from engine.core.tails import Tails, label_of, name_at
from engine.core.types import BlockId, HostBlockId, Request, SequenceStatus, TenantId

Block = TypeVar("Block", bound=int)

GETTING_ON = (SequenceStatus.RUNNING, SequenceStatus.SWAPPING_IN)


class Tier(NamedTuple, Generic[Block]):
    """A pool, and those of its blocks that have names."""

    pool: BlockPool[Block]
    cached: CachedBlocks[Block]


class PrefixCache:
    """The named blocks of both pools, and the sequences that use them. `fetches`: those on the host are found, too.

    `computing` has the sequence that computes a block next, by the block's name. `compared` gives what stands for a
    prompt where parts of blocks are compared: its tokens, but for a replay, which has not got them.

    A flow's `block_refs` count in how many tables of its sequences a block is that may be shared, so that its
    `num_device_blocks` counts each block once.
    """

    def __init__(self, device: Tier[BlockId], host: Tier[HostBlockId], block_size: int) -> None:
        self._pool, self._cached = device
        self._host_pool, self._host_cached = host
        self.block_size = block_size
        self.fetches = True
        self.computing: dict[BlockName, Sequence] = {}  # by the block that each prompt computes next
        self.compared: abc.Callable[[Request], abc.Sequence[int]] = _prompt_of
        self._tails = Tails(self._cached, block_size)

    @property
    def counts(self) -> CacheCounts:
        device, host = self._cached, self._host_cached
        return CacheCounts(device.num_kept, len(device), device.num_evicted, host.num_kept)

    @property
    def kept_ids(self) -> abc.Iterable[BlockId]:
        """The blocks that nobody uses."""
        return self._cached.kept_ids

    @property
    def labels(self) -> abc.Iterable[tuple[BlockId, Label]]:
        """Every block on the device that has a name."""
        return self._cached.labels

    @property
    def host_names(self) -> abc.Iterable[BlockName]:
        """Those of blocks on the host."""
        return [label.name for _, label in self._host_cached.labels]

    @property
    def num_demotable(self) -> int:
        """Kept blocks that may move to the host: as many as there is room for beside what is swapped out."""
        return min(self._cached.num_kept, self._host_pool.num_free)

    @property
    def host_kept_ids(self) -> abc.Iterable[HostBlockId]:
        """The host blocks that nobody uses."""
        return self._host_cached.kept_ids

    def price(self, costs: StepCosts, *, fetches: bool) -> None:
        """What a step costs, and whether blocks on the host are found."""
        self._tails.costs, self.fetches = costs, fetches

    def num_kept_of(self, tenant_id: TenantId) -> int:
        """Blocks of the tenant that are kept."""
        return self._cached.num_kept_of(tenant_id)

    def welcome(self, seq: Sequence) -> None:
        """A sequence that has just arrived: the blocks of its prompt have names, whatever is cached."""
        seq.finder, seq.root_name = self, root_of(seq.request)
        seq.compared_token_ids = self.compared(seq.request)
        seq.block_names = names_after(seq.root_name, seq.request.prompt_token_ids, self.block_size)

    def hit(self, seq: Sequence) -> Hit:
        """What a sequence without blocks would find: asked again, it is looked up again only if something changed."""
        hit, cached = seq.hit, self._cached
        version = cached.version + self._host_cached.version  # neither ever falls
        if hit is not None and hit.version == version:
            return hit
        names = seq.block_names[: self._num_findable(seq)]
        block_ids = _found(cached, names)
        host_ids = self._found_on_host(names[len(block_ids) :]) if self.fetches else []
        num_used = sum([self._pool.reference_count(block_id) > 0 for block_id in block_ids])
        tail = None if host_ids or _is_scored(seq) else self._tails.find(seq, len(block_ids))
        num_tokens = (len(block_ids) + len(host_ids)) * self.block_size + (0 if tail is None else tail.num_tokens)
        seq.hit = hit = Hit(version, tuple(block_ids), tuple(host_ids), num_tokens, num_used, tail)
        return hit

    def _num_findable(self, seq: Sequence) -> int:
        """Blocks of `seq` that need not be computed: not the last token's, and none of a prompt that is scored."""
        return 0 if _is_scored(seq) else (seq.num_tokens - 1) // self.block_size

    def adopt(self, seq: Sequence) -> Hit:
        """The table of `seq`, which was empty, begins with all full blocks that it found on the device. What it found
        on the host, or has to copy on the device, comes behind that, and is the caller's."""
        hit = self.hit(seq)
        self._pool.share(hit.block_ids)
        seq.block_table.device += hit.block_ids
        seq.num_named_blocks = len(hit.block_ids)
        block_refs.refer(seq.flow, hit.block_ids)
        # [0, regained) was computed or found before · [regained, found) is found for the first time
        num_found = max(0, min(hit.num_tokens, seq.num_prompt_tokens) - seq.num_regained_tokens)
        seq.num_found_tokens += num_found
        seq.flow.account.num_found_tokens += num_found
        return hit

    def get_on(self, seq: Sequence) -> None:
        """Tokens of `seq` were computed: what is full has a name, and others may wait for what comes next."""
        self.name_full(seq)
        self._tails.label(seq)
        self.announce(seq, seq.num_computed_tokens // self.block_size)

    def name_full(self, seq: Sequence) -> None:
        """Every full block of computed tokens in the table of `seq` has a name, unless its content has one already."""
        device = seq.block_table.device
        num_full = min(seq.num_computed_tokens // self.block_size, len(device))
        if num_full <= seq.num_named_blocks or not seq.is_sound:
            return
        self._extend_names(seq, num_full)
        names, refs = seq.block_names, seq.flow.block_refs
        for index in range(seq.num_named_blocks, num_full):
            if self._cached.name(device[index], label_of(seq, index, names[index], self.block_size)):
                refs.setdefault(device[index], 1)
        seq.num_named_blocks = num_full

    def announce(self, seq: Sequence, index: int) -> None:
        """Others that need the block at `index`, which `seq` computes or brings next, may wait for it."""
        is_prompt = seq.num_computed_tokens < seq.num_prompt_tokens
        name = name_at(seq, index, self.block_size) if is_prompt or index < len(seq.block_names) else None
        if name is not seq.announced:
            self._withdraw(seq)
            if name is not None:
                self.computing[name] = seq
                seq.announced = name

    def ahead_of(self, seq: Sequence) -> Sequence | None:
        """The sequence that computes, or brings from the host, the first block that `seq`, a head, does not find on the
        device; or all of the same prompt, if that ends in this block."""
        hit = self.hit(seq)
        index, name = len(hit.block_ids), None
        if index < min(len(seq.block_names), self._num_findable(seq)):
            name = seq.block_names[index]
        elif not _is_scored(seq):
            name = self._tails.awaited(seq, index, hit.num_tokens)
        ahead = None if name is None else self.computing.get(name)
        return ahead if ahead is not None and ahead.status in GETTING_ON else None

    def leave(self, seq: Sequence) -> None:
        """`seq` is about to release all its blocks: what is full is named before, and its flow has them no longer."""
        self.name_full(seq)
        self._withdraw(seq)
        block_refs.unrefer(seq.flow, seq.block_table.device)
        seq.num_named_blocks = 0

    def distrust(self, seq: Sequence) -> None:
        """What `seq` computed may be wrong: nobody finds it any more, and nothing of it gets a name."""
        seq.is_sound = False
        for block_id in seq.block_table.device:
            self._cached.forget(block_id)
        self._withdraw(seq)

    def take_labels(self, seq: Sequence, block_ids: abc.Iterable[BlockId]) -> tuple[Label | None, ...]:
        """These blocks, the last ones in the table of `seq` and nobody else's, leave it for a copy: nobody finds them
        until they have their labels again."""
        self.name_full(seq)
        self._withdraw(seq)
        return tuple(map(self._cached.forget, block_ids))

    def share_host(self, block_ids: abc.Iterable[HostBlockId]) -> None:
        """These blocks are read by a copy."""
        self._host_pool.share(block_ids)

    def take_oldest(self, num_blocks: int) -> list[tuple[BlockId, Label]]:
        """Of the `num_blocks` that would be evicted next the full ones that the host does not have, each with one
        reference, and the label that it had. The others are free."""
        taken = self._pool.take_kept(num_blocks)
        is_new = [label.is_full and self._host_cached.find(label.name) is None for _, label in taken]
        self._pool.release([block_id for (block_id, _), new in zip(taken, is_new, strict=True) if not new])
        return [each for each, new in zip(taken, is_new, strict=True) if new]

    def label_host(self, block_ids: abc.Iterable[HostBlockId], labels: abc.Iterable[Label | None]) -> None:
        """Blocks of these labels have come to the host. There are none after a lost step."""
        for block_id, label in zip(block_ids, labels, strict=False):
            if label is not None:
                self._host_cached.name(block_id, Label(label.name, label.owner))

    def give_labels(self, block_ids: abc.Iterable[BlockId], labels: abc.Iterable[Label | None]) -> None:
        """The copy has ended: who looks for these blocks finds them again. There are none after a lost step."""
        for block_id, label in zip(block_ids, labels, strict=False):
            if label is not None:
                self._cached.name(block_id, label)

    def _found_on_host(self, names: abc.Iterable[BlockName]) -> list[HostBlockId]:
        """Up to the first that is not there, or that another copy reads: who asked for that brings it for all."""
        found = _found(self._host_cached, names)
        num_idle = next((n for n, each in enumerate(found) if self._host_pool.reference_count(each)), len(found))
        return found[:num_idle]

    def _extend_names(self, seq: Sequence, num_blocks: int) -> None:
        """The first `num_blocks` blocks of known tokens have names."""
        names, size = seq.block_names, self.block_size
        if num_blocks > len(names):
            previous = names[-1] if names else seq.root_name
            names += names_after(previous, seq.tokens(len(names) * size, num_blocks * size), size)

    def _withdraw(self, seq: Sequence) -> None:
        name = seq.announced
        if name is not None:
            if self.computing.get(name) is seq:
                del self.computing[name]
            seq.announced = None


def _prompt_of(request: Request) -> abc.Sequence[int]:
    return request.prompt_token_ids


def _is_scored(seq: Sequence) -> bool:
    return seq.request.sampling.num_prompt_logprobs is not None


def _found(cached: CachedBlocks[Block], names: abc.Iterable[BlockName]) -> list[Block]:
    """The blocks of these names, up to the first that is not there."""
    block_ids: list[Block] = []
    for name in names:
        block_id = cached.find(name)
        if block_id is None:
            break
        block_ids.append(block_id)
    return block_ids
