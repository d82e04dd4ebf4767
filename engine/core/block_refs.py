"""Blocks of one flow that are in several of its tables, because beams share them or a prefix was found: each of them
counts once."""

from collections import abc

from engine.core.flow import Flow
from engine.core.types import BlockId


def refer_again(flow: Flow, block_ids: abc.Iterable[BlockId]) -> None:
    """Blocks of the flow are in one more of its tables."""
    refs = flow.block_refs
    for block_id in block_ids:
        refs[block_id] = refs.get(block_id, 1) + 1


def refer(flow: Flow, block_ids: abc.Iterable[BlockId]) -> None:
    """Blocks that were found are in one more table of the flow, perhaps its first."""
    refs = flow.block_refs
    for block_id in block_ids:
        num_refs = refs.get(block_id, 0)
        refs[block_id] = num_refs + 1
        flow.num_device_blocks += not num_refs


def unrefer(flow: Flow, block_ids: abc.Collection[BlockId]) -> None:
    """The flow has these blocks in one table less."""
    refs = flow.block_refs
    if not refs:
        flow.num_device_blocks -= len(block_ids)
        return
    for block_id in block_ids:
        num_refs = refs.pop(block_id, 1)
        if num_refs > 1:
            refs[block_id] = num_refs - 1
        else:
            flow.num_device_blocks -= 1


def move(block_ids: abc.Collection[BlockId], old: Flow, new: Flow) -> None:
    """A table with these blocks is one of `new`, no longer of `old`."""
    shared = {block_id for block_id in block_ids if block_id in old.block_refs}
    unrefer(old, block_ids)
    for block_id in block_ids:
        num_refs = new.block_refs.get(block_id, 0)
        new.num_device_blocks += not num_refs
        if block_id in shared or num_refs:
            new.block_refs[block_id] = num_refs + 1
