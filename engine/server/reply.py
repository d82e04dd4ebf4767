"""The answer to one question to the engine thread."""

import asyncio

from engine.core.types import Nanos
from engine.loop_messages import Update


class Reply:
    """The outlet of one command that is answered once."""

    def __init__(self) -> None:
        self.update: asyncio.Future[Update] = asyncio.get_running_loop().create_future()

    def put(self, update: Update, _at: Nanos) -> None:
        """`update` is the answer, unless nobody waits for it any more."""
        if not self.update.done():
            self.update.set_result(update)
