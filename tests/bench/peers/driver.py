"""What every peer's driver speaks: a line of JSON in, a line of JSON out. Standard library only, for any Python.

In: {"rows": [{"prompt", "num_output", "tenant", "arrival_s"}], "kv_tokens": n or null}. Out: {"wall_s", "first_s",
"ended_s"}, seconds since the start, by row; a null where the peer has no word of a first token. The first line out says
what the peer is: {"peer", "version", "config"}.
"""

import json
import os
import sys


def say(message):
    """One line on what was stdout when the process began."""
    _OUT.write(json.dumps(message) + "\n")
    _OUT.flush()


def serve(description, run):
    """Calls `run(rows)` for each line until the end; it returns (wall_s, first_s, ended_s)."""
    say(description)
    for line in sys.stdin:
        wall_s, first_s, ended_s = run(json.loads(line)["rows"])
        say({"wall_s": wall_s, "first_s": first_s, "ended_s": ended_s})


# Libraries print to stdout as they like; they get stderr instead.
_OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
