"""How a server of asyncio stops taking connections without forgetting one."""

import asyncio

# Of the event loop: from a connection that was accepted to its protocol, which `connection_made` has told of it.
TURNS_TO_HAND_OVER = 3


async def stop_accepting(server: asyncio.Server) -> None:
    """Nobody connects any more; everybody who was accepted has a protocol, over TLS asyncio's own. Idempotent.

    `Server.close` alone drops whoever was accepted in the turn before it: the connection has no protocol yet and never
    gets one, and its client waits until the socket happens to be collected.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    try:
        for _ in range(TURNS_TO_HAND_OVER):
            await asyncio.sleep(0)
    finally:
        server.close()
