"""What many look at, made once: the overview of the whole platform, for all who may read it."""

import asyncio
from collections import abc
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Newest(Generic[Made]):
    """The newest of one kind of thing. Written by itself only."""

    def __init__(self) -> None:
        self._parts: tuple[object, ...] = ()
        self._made: Made | None = None
        self._making = asyncio.Lock()

    async def of(self, make: abc.Callable[[], Made], *parts: object) -> Made:
        """What `make` makes of `parts`, on a thread; once, until one of them is another object."""
        async with self._making:
            if self._made is None or not _are_same(self._parts, parts):
                self._made = await asyncio.to_thread(make)
                self._parts = parts
            return self._made


def _are_same(some: abc.Sequence[object], others: abc.Sequence[object]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
