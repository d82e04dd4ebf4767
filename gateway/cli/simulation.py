"""How the answer to SimulateQuotaPolicies reads: a line per team, present and proposed, and who gains or loses."""

from google.protobuf.duration_pb2 import Duration
from rich.console import Console

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.output import new_table
from gateway.durations import differ_notably
from gateway.words import counted, short_name

HEADINGS = ("TEAM", "ADMITTED", "REFUSED", "OUTPUT TOKENS", "FIRST TOKEN P50", "P99", "SO")


def print_simulation(console: Console, response: pb.SimulateQuotaPoliciesResponse) -> None:
    """The table, then what the figures do not cover."""
    table = new_table(*HEADINGS)
    for tenant in response.tenants:
        now, then = tenant.current, tenant.proposed
        table.add_row(
            short_name(tenant.team),
            _change(str(now.admitted), str(then.admitted)),
            _change(str(now.refused), str(then.refused)),
            _change(str(now.output_tokens), str(then.output_tokens)),
            _change(_p50_text(now), _p50_text(then)),
            _change(_p99_text(now), _p99_text(then)),
            verdict(tenant),
        )
    console.print(table)
    past = f"{counted(response.num_requests, 'request')} and {counted(response.num_denials, 'refusal')} of the past"
    console.print(f"{past}, presented again under {response.scheduling_policy}.")
    for tenant in response.tenants:
        for limit, count in sorted(tenant.proposed.refused_by_limit.items()):
            console.print(f"  {short_name(tenant.team)}: {count} refused by {limit}")
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
    words += _wait_words((now.ttft_p99, then.ttft_p99), (now.ttft_p50, then.ttft_p50))
    return ", ".join(words) or "as now"


def _wait_words(*waits: tuple[Duration, Duration]) -> list[str]:
    """By the first of the pairs that differs: weights alone move the median and leave the longest waits."""
    for before, after in waits:
        before_s, after_s = seconds(before), seconds(after)
        # Nobody has a first token at once, so 0 is a wait that is not known.
        if before_s and after_s and differ_notably(before_s, after_s):
            return ["waits longer" if after_s > before_s else "waits less"]
    return []


def seconds(length: Duration) -> float:
    return length.seconds + length.nanos / 1e9


def _p50_text(outcome: pb.SimulatedOutcome) -> str:
    return f"{seconds(outcome.ttft_p50):.2f} s" if outcome.HasField("ttft_p50") else "-"


def _p99_text(outcome: pb.SimulatedOutcome) -> str:
    return f"{seconds(outcome.ttft_p99):.2f} s" if outcome.HasField("ttft_p99") else "-"


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"
