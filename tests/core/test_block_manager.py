"""Blocks: handed out, counted, given back."""

import pytest

from engine.core.block_manager import BlockManager
from engine.core.block_pool import BlockPool
from engine.core.plan import CopyDirection
from engine.core.types import BlockId, HostBlockId
from tests.builders import make_sequence


def make_pool(num_blocks: int) -> BlockPool[BlockId]:
    return BlockPool(map(BlockId, range(num_blocks)))


def test_a_block_is_free_again_when_its_last_reference_is_released():
    pool = make_pool(3)
    block_ids = pool.allocate(2)
    pool.share(block_ids[:1])

    pool.release(block_ids)
    assert pool.num_free == 2
    assert pool.reference_count(block_ids[0]) == 1

    pool.release(block_ids[:1])
    assert pool.num_free == 3


def test_blocks_are_handed_out_in_the_order_in_which_they_became_free():
    pool = make_pool(3)
    first, second, third = pool.allocate(3)
    pool.release([second])
    pool.release([first, third])

    assert pool.allocate(3) == [second, first, third]


def test_a_block_released_twice_is_a_bug():
    pool = make_pool(1)
    pool.release(block_ids := pool.allocate(1))

    with pytest.raises(AssertionError, match="released twice"):
        pool.release(block_ids)


def test_a_free_block_cannot_be_shared():
    with pytest.raises(AssertionError, match="is free"):
        make_pool(1).share([BlockId(0)])


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_table_grows_by_whole_blocks(num_tokens: int, num_blocks: int):
    blocks = BlockManager(num_blocks=8, block_size=4)
    seq = make_sequence()

    blocks.grow(seq, num_tokens)

    assert len(seq.block_table.device) == num_blocks
    assert blocks.capacity(seq.block_table) == 4 * num_blocks
    assert blocks.num_free == 8 - num_blocks
    assert seq.flow.num_device_blocks == num_blocks


def test_growing_to_what_a_table_holds_already_changes_nothing():
    blocks = BlockManager(num_blocks=2, block_size=4)
    seq = make_sequence()
    blocks.grow(seq, 8)
    before = list(seq.block_table.device)

    blocks.grow(seq, 5)

    assert seq.block_table.device == before


def test_a_freed_table_is_empty_and_its_last_block_is_reused_first():
    blocks = BlockManager(num_blocks=2, block_size=4)
    seq, other = make_sequence(), make_sequence()
    blocks.grow(seq, 8)
    last = seq.block_table.device[-1]

    blocks.free(seq)
    blocks.grow(other, 1)

    assert seq.block_table.device == []
    assert seq.flow.num_device_blocks == 0
    assert other.block_table.device == [last]


class TestSwap:
    """Four blocks on the device, four on the host; a sequence has three."""

    @pytest.fixture
    def blocks(self) -> BlockManager:
        return BlockManager(num_blocks=4, block_size=4, num_host_blocks=4)

    @pytest.fixture
    def seq(self, blocks: BlockManager):
        seq = make_sequence()
        blocks.grow(seq, 12)
        return seq

    def test_out_takes_the_last_blocks_and_fences_them(self, blocks: BlockManager, seq):
        copy = blocks.swap_out(seq, 2)

        assert (copy.direction, copy.device_block_ids, copy.host_block_ids) == (CopyDirection.OUT, (1, 2), (0, 1))
        assert (seq.block_table.device, seq.block_table.host) == ([0], [0, 1])
        assert (blocks.num_free, blocks.num_fenced, blocks.host_pool.num_free) == (1, 2, 2)
        assert seq.flow.num_device_blocks == 1

    def test_fenced_blocks_are_free_when_the_copy_is_complete(self, blocks: BlockManager, seq):
        copy = blocks.swap_out(seq, 2)
        assert set(blocks.pool.free_ids) == {3}

        assert blocks.complete(copy.copy_id).seq is seq

        assert set(blocks.pool.free_ids) == {1, 2, 3}
        assert blocks.num_fenced == 0
        assert blocks.in_flight == {}

    def test_a_second_swap_goes_before_the_first_on_the_host(self, blocks: BlockManager, seq):
        blocks.complete(blocks.swap_out(seq, 1).copy_id)
        blocks.complete(blocks.swap_out(seq, 2).copy_id)

        assert seq.block_table.device == []
        assert seq.block_table.host == [1, 2, 0]  # blocks of tokens 0-3, 4-7, 8-11

    def test_in_brings_all_blocks_back_in_token_order(self, blocks: BlockManager, seq):
        blocks.complete(blocks.swap_out(seq, 2).copy_id)
        copy = blocks.swap_in(seq)

        assert (copy.direction, copy.device_block_ids, copy.host_block_ids) == (CopyDirection.IN, (3, 1), (0, 1))
        assert (seq.block_table.device, seq.block_table.host) == ([0, 3, 1], [])
        assert blocks.host_pool.num_free == 2  # the copy still reads there

        blocks.complete(copy.copy_id)
        assert blocks.host_pool.num_free == 4

    def test_a_copy_is_completed_once(self, blocks: BlockManager, seq):
        copy = blocks.swap_out(seq, 1)
        blocks.complete(copy.copy_id)

        with pytest.raises(KeyError):
            blocks.complete(copy.copy_id)

    @pytest.mark.parametrize(("shared", "num_movable"), [([], 3), ([0], 2), ([1], 1), ([2], 0), ([0, 2], 0)])
    def test_only_what_comes_after_the_last_shared_block_can_move(self, blocks, seq, shared, num_movable):
        blocks.pool.share(map(BlockId, shared))

        assert blocks.num_movable(seq.block_table) == num_movable


def test_the_host_pool_hands_out_ids_of_its_own():
    blocks = BlockManager(num_blocks=2, block_size=4, num_host_blocks=3)

    assert list(blocks.host_pool.free_ids) == [HostBlockId(0), HostBlockId(1), HostBlockId(2)]
