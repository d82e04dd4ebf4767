"""What follows a block: blocks by the tokens that they begin with, and which of them has most in common with others.

One radix tree of tokens for each block that is followed by some. Which of several blocks is found depends on the order
in which they came and went and on where their tokens differ, never on what the tokens are.
"""

from collections import abc
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from engine.core.block_names import BlockName

Block = TypeVar("Block", bound=int)
TokenIds = tuple[int, ...]


class Common(NamedTuple, Generic[Block]):
    """The first `num_tokens` tokens are those of `block_id`, and no block has more of them. `goes_on`: behind these
    some block has another token."""

    block_id: Block
    num_tokens: int
    goes_on: bool


@dataclass(slots=True, eq=False)
class _Node(Generic[Block]):
    """`token_ids` lead from its parent here, where `block_ids` end; children are by their first token."""

    token_ids: TokenIds
    children: "dict[int, _Node[Block]]" = field(default_factory=dict)
    block_ids: dict[Block, None] = field(default_factory=dict)


class Continuations(Generic[Block]):
    """Blocks, each known by the name of the block before it and by at least one token. Costs O(tokens of a block)."""

    def __init__(self) -> None:
        self._roots: dict[BlockName, _Node[Block]] = {}

    def put(self, previous: BlockName, token_ids: TokenIds, block_id: Block) -> None:
        """The block follows the one called `previous` and begins with `token_ids`."""
        node = self._roots.setdefault(previous, _Node(()))
        while token_ids:
            child = node.children.get(token_ids[0])
            if child is None:
                child = node.children[token_ids[0]] = _Node(token_ids)
            num_common = _num_common(child.token_ids, token_ids)
            if num_common < len(child.token_ids):
                child = node.children[token_ids[0]] = _split(child, num_common)
            node, token_ids = child, token_ids[num_common:]
        node.block_ids[block_id] = None

    def discard(self, previous: BlockName, token_ids: TokenIds, block_id: Block) -> None:
        """The block, which was put in with these, is gone."""
        path = [self._roots[previous]]
        while token_ids:
            path.append(path[-1].children[token_ids[0]])
            token_ids = token_ids[len(path[-1].token_ids) :]
        del path[-1].block_ids[block_id]
        while len(path) > 1 and not path[-1].block_ids and not path[-1].children:
            first = path.pop().token_ids[0]
            del path[-1].children[first]
        if not self._roots[previous].children:
            del self._roots[previous]

    def most_common(self, previous: BlockName, token_ids: abc.Sequence[int]) -> Common[Block] | None:
        """The block behind `previous` that begins most like `token_ids`, if only with none of them. None: none follows
        it."""
        node = self._roots.get(previous)
        if node is None:
            return None
        num_tokens, is_within = 0, False
        while not is_within and num_tokens < len(token_ids):
            child = node.children.get(token_ids[num_tokens])
            if child is None:
                break
            num_common = _num_common(child.token_ids, token_ids[num_tokens:])
            num_tokens += num_common
            node, is_within = child, num_common < len(child.token_ids)
        goes_on = is_within or bool(node.children)
        while not node.block_ids:
            node = next(iter(node.children.values()))
        return Common(next(iter(node.block_ids)), num_tokens, goes_on)

    def clear(self) -> None:
        """No block follows another."""
        self._roots.clear()


def _split(node: _Node[Block], num_tokens: int) -> _Node[Block]:
    """A node behind the first `num_tokens` of those that led to `node`, which is its only child now."""
    above = _Node(node.token_ids[:num_tokens], {node.token_ids[num_tokens]: node})
    node.token_ids = node.token_ids[num_tokens:]
    return above


def _num_common(first: abc.Sequence[int], second: abc.Sequence[int]) -> int:
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return number
    return min(len(first), len(second))
