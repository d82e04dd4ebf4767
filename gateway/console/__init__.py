"""The console: pages for administrators in a browser, served by the gateway at `/console`.

Shows and changes what the Admin API does, through the same methods and the same decision on who may: nothing here
writes to the store. Pages are made on the server and work without a script; no request of theirs leaves the origin.
"""

from gateway.console.app import console_app
from gateway.console.parts import Parts
from gateway.console.sampler import Sampler

__all__ = ["Parts", "Sampler", "console_app"]
