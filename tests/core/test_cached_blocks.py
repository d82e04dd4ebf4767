"""Names of blocks, and which of those that nobody uses make room first."""

import pytest

from engine.core.block_names import NO_NAME, BlockName, names_after, root_of
from engine.core.block_pool import BlockPool
from engine.core.cached_blocks import CachedBlocks, Label
from engine.core.types import BlockId, TenantId
from tests.builders import make_request

A, B = TenantId("a"), TenantId("b")


def make_pool(num_blocks: int = 8, *, floor: int = 0, ceiling: int = 8) -> tuple[BlockPool, CachedBlocks]:
    cached: CachedBlocks[BlockId] = CachedBlocks(floor, ceiling)
    return BlockPool(map(BlockId, range(num_blocks)), cached), cached


def use(pool: BlockPool, cached: CachedBlocks, owner: TenantId, *names: str) -> list[BlockId]:
    """Blocks of these names were computed for the owner, and then used no more, the first one first."""
    block_ids = pool.allocate(len(names))
    for block_id, name in zip(block_ids, names, strict=True):
        cached.name(block_id, Label(BlockName(name.encode()), owner))
    pool.release(block_ids)
    return block_ids


def found(cached: CachedBlocks, *names: str) -> str:
    return "".join(name for name in names if cached.find(BlockName(name.encode())) is not None)


class TestNames:
    def test_are_equal_where_all_tokens_so_far_are(self):
        long, short = names_after(NO_NAME, range(14), 4), names_after(NO_NAME, [*range(8), 99, 9, 10, 11], 4)

        assert len(long) == 3
        assert long[:2] == short[:2]
        assert long[2] != short[2]

    def test_go_on_from_any_block(self):
        names = names_after(NO_NAME, range(12), 4)

        assert names_after(names[0], range(4, 12), 4) == names[1:]

    def test_do_not_meet_where_the_same_tokens_come_in_another_place(self):
        names = names_after(NO_NAME, [7, 7, 7, 7], 2)

        assert names[0] != names[1]

    def test_of_different_salts_and_tenants_never_meet(self):
        requests = [make_request(tenant=tenant, cache_salt=salt) for tenant in "ab" for salt in (b"", b"x", b"y")]

        roots = {root_of(request) for request in requests}

        assert len(roots) == 4  # two tenants without a salt, and two salts
        assert root_of(make_request(tenant="a", cache_salt=b"org-a/a")) not in roots


class TestEviction:
    def test_makes_room_only_when_nothing_else_is_free(self):
        pool, cached = make_pool(4)
        use(pool, cached, A, "x", "y")

        assert pool.num_free == 4
        assert pool.allocate(2) == [2, 3]
        assert found(cached, "x", "y") == "xy"
        assert pool.allocate(1) == [0]
        assert found(cached, "x", "y") == "y"

    def test_takes_what_was_used_longest_ago(self):
        pool, cached = make_pool(3)
        x, y, z = use(pool, cached, A, "x", "y", "z")
        pool.share([x])
        pool.release([x])

        assert pool.allocate(2) == [y, z]
        assert found(cached, "x", "y", "z") == "x"

    def test_takes_first_from_owners_above_the_floor(self):
        pool, cached = make_pool(6, floor=2)
        use(pool, cached, B, "u", "v")
        use(pool, cached, A, "w", "x", "y", "z")

        pool.allocate(2)
        assert found(cached, *"uvwxyz") == "uvyz"
        pool.allocate(1)  # nobody is above: the oldest goes
        assert found(cached, *"uvwxyz") == "vyz"

    def test_nobody_keeps_more_than_the_ceiling(self):
        pool, cached = make_pool(6, ceiling=2)
        use(pool, cached, A, "w", "x", "y", "z")

        assert (cached.num_kept, pool.num_free, cached.num_evicted) == (2, 6, 2)
        assert found(cached, *"wxyz") == "yz"
        assert len(list(pool.free_ids)) == 4

    def test_of_everything_leaves_nothing_that_is_found(self):
        pool, cached = make_pool(4)
        use(pool, cached, A, "x", "y")

        pool.forget_cached()

        assert found(cached, "x", "y") == ""
        assert sorted(pool.free_ids) == [0, 1, 2, 3]
        assert (len(cached), cached.num_kept) == (0, 0)


def test_a_kept_block_that_is_shared_again_is_used():
    pool, cached = make_pool(2)
    x, _ = use(pool, cached, A, "x", "y")

    pool.share([x, x])

    assert (pool.reference_count(x), pool.num_shared, cached.num_kept, pool.num_free) == (2, 1, 1, 1)


def test_a_name_belongs_to_one_block():
    pool, cached = make_pool(2)
    first, second = pool.allocate(2)
    label = Label(BlockName(b"x"), A)

    assert cached.name(first, label)
    assert not cached.name(second, label)
    pool.release([second])
    assert list(pool.free_ids) == [second]


def test_the_version_changes_with_whatever_may_be_found():
    pool, cached = make_pool(2)
    versions = [cached.version]
    (block_id,) = pool.allocate(1)
    for change in (
        lambda: cached.name(block_id, Label(BlockName(b"x"), A)),
        lambda: pool.release([block_id]),
        lambda: pool.share([block_id]),
        lambda: cached.forget(block_id),
        cached.clear,
    ):
        change()
        versions.append(cached.version)

    assert len(set(versions)) == len(versions)


def test_a_free_block_cannot_be_shared():
    pool, _ = make_pool(2)

    with pytest.raises(AssertionError, match="block 1 is free"):
        pool.share([BlockId(1)])
