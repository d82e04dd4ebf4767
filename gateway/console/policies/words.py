"""How the choices of a policy's form read, and its temporary grants. Pure."""

from collections import abc
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.policies.grant_form import raised_text

Options = abc.Sequence[tuple[str, str]]

CHOICES: abc.Mapping[str, Options] = {
    "dimension": (
        ("", "choose…"),
        ("REQUESTS", "requests"),
        ("TOTAL_TOKENS", "tokens, in and out"),
        ("INPUT_TOKENS", "input tokens"),
        ("OUTPUT_TOKENS", "output tokens"),
        ("COST_UNITS", "cost units"),
        ("CONCURRENCY", "requests at one time"),
    ),
    "window": (("", "choose…"), ("DAY", "day"), ("WEEK", "week"), ("MONTH", "month")),
    "mode": (
        ("ENFORCE", "is refused"),
        ("SHADOW", "runs, and is counted"),
        ("BORROW", "runs while the engine has room"),
    ),
    "reservation": (
        ("", "as the node above says"),
        ("HARD", "all that it may use"),
        ("EXPECTED", "what most need, and more in slices"),
    ),
    "on_store_loss": (
        ("SERVE_STALE", "goes on with its part of the limits"),
        ("FAIL_CLOSED", "stops after five seconds"),
    ),
}


@dataclass(frozen=True, slots=True)
class GrantLine:
    """A temporary grant as a row of a table."""

    uid: str
    raised: str
    until: Timestamp
    reason: str
    creator: str


def grant_lines(policy: pb.QuotaPolicy) -> list[GrantLine]:
    """What raises the policy's limits for a time, what ends first coming first."""
    lines = [
        GrantLine(grant.uid, raised_text(grant), grant.expire_time, grant.reason, grant.creator)
        for grant in policy.temporary_quotas
    ]
    return sorted(lines, key=lambda line: line.until.ToNanoseconds())
