"""How the answer to SimulateQuotaPolicies reads: a line per team, present and proposed, and who gains or loses."""

from google.protobuf.duration_pb2 import Duration
from rich.console import Console

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.output import new_table
from gateway.cli.references import short

HEADINGS = ("TEAM", "ADMITTED", "REFUSED", "OUTPUT TOKENS", "FIRST TOKEN P50", "P99", "SO")
SMALLEST_CHANGE = 0.05  # of a wait that is worth a word
SMALLEST_WAIT_S = 0.01


def print_simulation(console: Console, response: pb.SimulateQuotaPoliciesResponse) -> None:
    """The table, then what the figures do not cover."""
    table = new_table(*HEADINGS)
    for tenant in response.tenants:
        now, then = tenant.current, tenant.proposed
        table.add_row(
            short(tenant.team),
            _change(str(now.admitted), str(then.admitted)),
            _change(str(now.refused), str(then.refused)),
            _change(str(now.output_tokens), str(then.output_tokens)),
            _change(_p50_text(now), _p50_text(then)),
            _change(_p99_text(now), _p99_text(then)),
            verdict(tenant),
        )
    console.print(table)
    console.print(
        f"{response.num_requests} requests and {response.num_denials} refusals of the past, presented again under "
        f"{response.scheduling_policy}."
    )
    for tenant in response.tenants:
        for limit, count in sorted(tenant.proposed.refused_by_limit.items()):
            console.print(f"  {short(tenant.team)}: {count} refused by {limit}")
    for note in response.notes:
        console.print(f"note: {note}")


def verdict(tenant: pb.SimulatedTenant) -> str:
    """Who gains, fails or waits, in words."""
    now, then = tenant.current, tenant.proposed
    words = []
    if then.admitted > now.admitted:
        words.append(f"{then.admitted - now.admitted} more admitted")
    if then.refused > now.refused:
        words.append(f"{then.refused - now.refused} more refused")
    if now.HasField("ttft_p99") and then.HasField("ttft_p99"):
        before_s, after_s = seconds(now.ttft_p99), seconds(then.ttft_p99)
        if abs(after_s - before_s) > max(SMALLEST_WAIT_S, SMALLEST_CHANGE * before_s):
            words.append("waits longer" if after_s > before_s else "waits less")
    return ", ".join(words) or "as now"


def seconds(length: Duration) -> float:
    return length.seconds + length.nanos / 1e9


def _p50_text(outcome: pb.SimulatedOutcome) -> str:
    return f"{seconds(outcome.ttft_p50):.2f} s" if outcome.HasField("ttft_p50") else "-"


def _p99_text(outcome: pb.SimulatedOutcome) -> str:
    return f"{seconds(outcome.ttft_p99):.2f} s" if outcome.HasField("ttft_p99") else "-"


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"
