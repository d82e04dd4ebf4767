"""What has happened to one request since its stream was last written to. asyncio thread only.

Filled by `put`, whenever the loop publishes; emptied by the call's coroutine. Token updates that wait together become
one, so that load makes messages larger instead of more frequent; nothing is put after the end.
"""

import asyncio
from collections import abc

from engine.core.events import Finished, TokensEmitted
from engine.core.types import Nanos
from engine.loop_messages import Refused, Update


class Mailbox:
    """One request's updates, in order, each once. It has ended when Finished or Refused was put."""

    def __init__(self, observe: abc.Callable[[Update, Nanos], None]) -> None:
        self._observe = observe
        self._updates: list[Update] = []
        self._is_filled = asyncio.Event()
        self._on_filled: abc.Callable[[], None] | None = None
        self.has_ended = False

    def put(self, update: Update, at: Nanos) -> None:
        """Add `update`, which happened `at` that moment. Ignored after the end."""
        if self.has_ended:
            return
        self.has_ended = isinstance(update, Finished | Refused)
        self._updates.append(update)
        self._is_filled.set()
        self._observe(update, at)
        if self._on_filled is not None:
            self._on_filled()

    def tell(self, on_filled: abc.Callable[[], None]) -> None:
        """`on_filled` is called whenever there is something to drain, also what is there already."""
        self._on_filled = on_filled
        if self._updates:
            on_filled()

    async def take(self) -> list[Update]:
        """Everything since the last call, at least one update, with runs of tokens joined."""
        await self._is_filled.wait()
        return self.drain()

    def drain(self) -> list[Update]:
        """The same without waiting: perhaps nothing."""
        self._is_filled.clear()
        updates, self._updates = self._updates, []
        return coalesce(updates)


def coalesce(updates: abc.Iterable[Update]) -> list[Update]:
    """`updates` with neighbouring TokensEmitted joined into one."""
    joined: list[Update] = []
    run: list[TokensEmitted] = []
    for update in updates:
        if isinstance(update, TokensEmitted):
            run.append(update)
            continue
        if run:
            joined.append(_join(run))
            run = []
        joined.append(update)
    if run:
        joined.append(_join(run))
    return joined


def _join(run: list[TokensEmitted]) -> TokensEmitted:
    if len(run) == 1:
        return run[0]
    return TokensEmitted(
        key=run[0].key,
        token_ids=tuple(token_id for update in run for token_id in update.token_ids),
        logprobs=tuple(logprobs for update in run for logprobs in update.logprobs),
    )
