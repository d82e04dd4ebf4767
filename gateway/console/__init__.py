"""The console: pages for administrators in a browser, served by the gateway at `/console`.

Shows and changes what the Admin API does, through the same methods and the same decision on who may. All that it writes
to the store itself is which sessions were ended, and how often somebody tried to sign in. Pages are made on the server
and work without a script; no request of theirs leaves the origin.

app, routes, pipeline    the table of paths, and what happens around every request
sign_in                  who is signed in
visit, parts             one request of theirs, and what everything here is made over
pages                    the pages, a module each, over values from:
overview, charts         figures that move, and pictures
policies                 a quota policy as a form, in words, and tried before it is saved
templates, static        what pages look like
"""

from gateway.console.app import console_app
from gateway.console.overview.sampler import Sampler
from gateway.console.parts import Parts
from gateway.console.sign_in.login_limits import LoginLimits
from gateway.console.sign_in.session_ends import SessionEnds

__all__ = ["LoginLimits", "Parts", "Sampler", "SessionEnds", "console_app"]
