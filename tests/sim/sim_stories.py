"""Small runs told to a recorder, for the tests of what it and the reports make of them."""

from engine.core.events import Usage
from engine.core.plan import CopyDirection
from engine.core.types import FinishReason, PauseReason, PreemptionMode
from engine.sim.metrics import Recorder, RecorderOptions
from engine.sim.traffic import Arrival

MS = 1_000_000
SECOND = 1_000 * MS


def arrival(tenant="org/a", at_ns=0, prompt=10, output=4, **fields):
    return Arrival(at_ns, tenant, prompt, output, **fields)


def usage(prompt=10, output=1, recomputed=0, cached=0):
    return Usage(prompt, cached, output, recomputed, 0)


def serve(recorder, request_id, row, first_at, end_at):
    """One request from arrival to end; its work is served evenly from the first token on."""
    recorder.on_arrival(row, request_id, row.at_ns)
    recorder.on_admitted(request_id, first_at)
    recorder.on_first_token(request_id, first_at)
    recorder.on_tokens(row.tenant, row.num_prompt_tokens, row.num_output_tokens, 0, end_at, first_at)
    ended = usage(row.num_prompt_tokens, row.num_output_tokens)
    recorder.on_finish(request_id, FinishReason.LENGTH, ended, end_at)


def busy_outcome(label="fair", num_tenants=12, num_requests=300, *, swaps=True):
    """Tenants of unequal size on one engine, some of whose requests are swapped out and in."""
    recorder = Recorder(RecorderOptions(label=label, block_bytes=4096, gap_window_ns=2 * SECOND, notes=("made up",)))
    for number in range(num_requests):
        tenant = f"org/t{number % num_tenants % (1 + number % 7):02d}"
        row = Arrival(number * 50 * MS, tenant, 100 + number % 13, 20 + number % 5)
        first_at = row.at_ns + (20 + 7 * (number % 11)) * MS
        serve(recorder, f"r{number}", row, first_at, first_at + 600 * MS)
        recorder.on_step(15 * MS + number % 3 * MS, first_at)
        if swaps and number % 20 == 0:
            recorder.on_copy(7, CopyDirection.OUT, first_at)
            recorder.on_copy(7, CopyDirection.IN, first_at + 300 * MS)
    for tenant in ("org/t00", "org/t01"):
        recorder.on_arrival(Arrival(0, tenant, 5, 5), f"denied {tenant}", 0)
    recorder.on_admitted("denied org/t00", 12 * SECOND)
    recorder.on_preempted("denied org/t00", PreemptionMode.SWAP, PauseReason.FAIRNESS, 12 * SECOND)
    return recorder.result(16 * SECOND)
