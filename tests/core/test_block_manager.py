"""Blocks: handed out, counted, given back."""

import pytest

from engine.core.block_manager import BlockManager
from engine.core.block_pool import BlockPool
from engine.core.sequence import BlockTable


def test_a_block_is_free_again_when_its_last_reference_is_released():
    pool = BlockPool(3)
    block_ids = pool.allocate(2)
    pool.share(block_ids[:1])

    pool.release(block_ids)
    assert pool.num_free == 2
    assert pool.reference_count(block_ids[0]) == 1

    pool.release(block_ids[:1])
    assert pool.num_free == 3


def test_blocks_are_handed_out_in_the_order_in_which_they_became_free():
    pool = BlockPool(3)
    first, second, third = pool.allocate(3)
    pool.release([second])
    pool.release([first, third])

    assert pool.allocate(3) == [second, first, third]


def test_a_block_released_twice_is_a_bug():
    pool = BlockPool(1)
    pool.release(block_ids := pool.allocate(1))

    with pytest.raises(AssertionError, match="released twice"):
        pool.release(block_ids)


def test_a_free_block_cannot_be_shared():
    with pytest.raises(AssertionError, match="is free"):
        BlockPool(1).share([0])


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_table_grows_by_whole_blocks(num_tokens: int, num_blocks: int):
    blocks = BlockManager(num_blocks=8, block_size=4)
    table = BlockTable()

    blocks.grow(table, num_tokens)

    assert len(table.device) == num_blocks
    assert blocks.capacity(table) == 4 * num_blocks
    assert blocks.num_free == 8 - num_blocks


def test_growing_to_what_a_table_holds_already_changes_nothing():
    blocks = BlockManager(num_blocks=2, block_size=4)
    table = BlockTable()
    blocks.grow(table, 8)
    before = list(table.device)

    blocks.grow(table, 5)

    assert table.device == before


def test_a_freed_table_is_empty_and_its_last_block_is_reused_first():
    blocks = BlockManager(num_blocks=2, block_size=4)
    table = BlockTable()
    blocks.grow(table, 8)
    last = table.device[-1]

    blocks.free(table)
    other = BlockTable()
    blocks.grow(other, 1)

    assert table.device == []
    assert other.device == [last]
