"""How the command line, the console and refusals tell of resources and of requests that wait: in the same words.

Pure, and without any message of the protocol: what a message says is passed in.
"""

from collections import abc
from enum import StrEnum

MAX_LISTED = 8
EVERY_TEAM = "organizations/-/teams/-"
LEVELS = ("organization", "team")
KINDS = frozenset(
    {
        "organizations",
        "teams",
        "apiKeys",
        "priorityClasses",
        "quotaPolicies",
        "roleBindings",
        "jwtIssuers",
        "subjects",
    }
)
REASONS = {
    "": "nothing: it is being computed, or will be in the next step",
    "order": "others are served first",
    "rows": "the batch is full (max_num_seqs): it is next when somebody ends",
    "blocks": "the KV pool has no room for its prompt: it is next when somebody ends",
    "fairness": "it yields: its tenant was served more than its share",
    "kv_pressure": "it gave its place in the step, or its memory, to others",
    "quota": "its output tokens are not granted: a quota of its key, team or organization is used up",
    "reader": "its client does not read",
    "copy": "its memory is moving between the device and the host",
}
UNQUEUED_REASONS = frozenset({"quota", "reader"})
"""Nobody's turn helps a request that is held up by these."""


class State(StrEnum):
    """Where a request that has not ended is."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    SWAPPING_OUT = "swapping_out"
    SWAPPED = "swapped"
    SWAPPING_IN = "swapping_in"


QUEUED_STATES = frozenset({State.WAITING, State.SWAPPED})


def part_text(part: int, whole: int) -> str:
    """`part` of `whole` in percent; a dash where there is nothing yet."""
    return f"{part / whole:.1%}" if whole else "-"


def short_name(name: str) -> str:
    """`acme/search` of `organizations/acme/teams/search`; what is no resource's name as it is."""
    parts = name.split("/")
    return "/".join(parts[1::2]) if len(parts) % 2 == 0 and KINDS.issuperset(parts[0::2]) else name


def reason_text(blocked_by: str) -> str:
    """What keeps a request from getting tokens; a reason that is not known here as it is."""
    return REASONS.get(blocked_by, blocked_by)


def position_text(state: str, blocked_by: str, num_ahead: int, *, is_at_least: bool) -> str:
    """`3 before it`, `more than 100 before it`, `next`, or that it does not wait."""
    if state not in QUEUED_STATES or blocked_by in UNQUEUED_REASONS:
        return "not in the queue"
    if not num_ahead and not is_at_least:
        return "next"
    return f"{'more than ' if is_at_least else ''}{num_ahead} before it"


def wait_text(length_s: float, *, is_at_least: bool) -> str:
    """`about 3.0 s`, `more than 3.0 s`."""
    return f"{'more than' if is_at_least else 'about'} {plain_seconds(length_s)}"


def lost_steps_text(num_steps: int, num_requeues: int) -> str:
    """`OUT OF MEMORY in 2 steps since its start, 5 requests were sent back`, one as often as it was."""
    were = "was" if num_requeues == 1 else "were"
    steps, requests = counted(num_steps, "step"), counted(num_requeues, "request")
    return f"OUT OF MEMORY in {steps} since its start, {requests} {were} sent back"


def policy_text(name: str, options: abc.Mapping[str, str]) -> str:
    """`fair (mode=strict)`, the options as they were given."""
    given = ", ".join(f"{option}={value}" for option, value in sorted(options.items()))
    return f"{name} ({given})" if given else name


def plain_seconds(length_s: float) -> str:
    """`3.0 s`, however long: one below the other they can be compared."""
    return f"{length_s:.1f} s"


def number(value: float) -> str:
    """`1,234,567`; of what is not whole three significant digits."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def counted(count: float, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def standings_of(values: abc.Sequence[float]) -> list[tuple[str, float]]:
    """By the level that each is of, from the outermost. A policy that knows one level counts teams."""
    return list(zip(LEVELS[-len(values) :], values, strict=False))


def listed(names: abc.Sequence[str]) -> str:
    """`a, b`; of many the first ones, and how many more there are."""
    rest = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
