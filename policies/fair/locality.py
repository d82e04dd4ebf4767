"""Cached prefixes: within the slack, whoever has most of its prompt in the cache comes first."""

from collections import abc

from policies.fair.node import Node
from policies.fair.tree import Tree

MAX_LOCAL = 8  # flows within the slack that are compared


def most_local(tree: Tree, leaf: Node, excluded: abc.Set[Node]) -> Node:
    """Of the siblings within the slack of `leaf`, the one whose head has the longest cached prefix."""
    parent, slack = leaf.parent, tree.quantities.slack
    if not slack or parent is None:
        return leaf
    best, seen = leaf, {*excluded, leaf}
    limit = tree.rank(leaf)[0] + slack
    while len(seen) < len(excluded) + MAX_LOCAL:
        sibling = tree.first_queued(parent, seen)
        if sibling is None or tree.rank(sibling)[0] > limit or sibling.flow in tree.yielding:
            break
        seen.add(sibling)
        if _num_cached(sibling) > _num_cached(best):
            best = sibling
    return best


def _num_cached(leaf: Node) -> int:
    head = leaf.queue.head()
    return 0 if head is None else head.num_cached_prompt_tokens
