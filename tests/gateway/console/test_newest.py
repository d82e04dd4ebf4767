"""What many look at is made once."""

import asyncio

from gateway.console.overview.newest import Newest


async def test_it_is_made_once_until_it_would_be_of_something_else():
    newest, made = Newest(), []

    def make() -> int:
        made.append("one")
        return len(made)

    first, second = object(), object()
    told = await asyncio.gather(*(newest.of(make, first) for _ in range(20)))

    assert told == [1] * 20
    assert await newest.of(make, second) == 2
    assert await newest.of(make, second) == 2
    assert await newest.of(make, first) == 3
