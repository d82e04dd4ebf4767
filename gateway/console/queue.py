"""The queue as values for its templates: what runs and waits, and why one request stands where it stands. Pure."""

from collections import Counter, abc
from dataclasses import dataclass

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.words import team_path
from gateway.store.records import ResourcePath
from gateway.words import position_text, reason_text, short_name, standings_of, wait_text

MAX_SHOWN_AHEAD = 20


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One unfinished request. `path`: of its team, for what the reader may do to it; None of one that is unknown."""

    generation_id: str
    team: str
    path: ResourcePath | None
    priority_class: str
    state: str
    prompt_tokens: int
    output_tokens: int
    max_output_tokens: int
    computed_tokens: int
    waited_s: float
    age_s: float
    num_preemptions: int
    num_device_blocks: int
    engine: str


@dataclass(frozen=True, slots=True)
class QueuePage:
    """A page of the queue. `unreachable`: engines that did not answer, whose requests are missing."""

    lines: tuple[RequestLine, ...]
    num_by_state: abc.Mapping[str, int]
    unreachable: tuple[str, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class Standing:
    """A policy's own measure of one node on the way to the request; comparable between siblings only."""

    level: str
    value: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a request stands. `position` in words; `estimated_wait` None: nobody can tell."""

    line: RequestLine
    reason: str
    position: str
    estimated_wait: str | None
    ahead: tuple[RequestLine, ...]
    num_ahead_not_shown: int
    standings: tuple[Standing, ...]
    tenant_prompt_tokens: int
    tenant_output_tokens: int
    scheduling_policy: str

    @property
    def title(self) -> str:
        """What runs is not asked why it waits."""
        return "Where this request stands" if self.line.state == "running" else "Why this request waits"


def queue_page(response: pb.ListQueueResponse) -> QueuePage:
    """In order of arrival."""
    lines = tuple(map(request_line, response.entries))
    return QueuePage(
        lines,
        Counter(line.state for line in lines),
        tuple(response.unreachable),
        response.next_page_token,
    )


def request_line(entry: pb.QueueEntry) -> RequestLine:
    return RequestLine(
        generation_id=entry.generation_id,
        team=short_name(entry.team),
        path=team_path(entry.team),
        priority_class=entry.priority_class,
        state=entry.state,
        prompt_tokens=entry.prompt_tokens,
        output_tokens=entry.output_tokens,
        max_output_tokens=entry.max_output_tokens,
        computed_tokens=entry.computed_tokens,
        waited_s=entry.wait.ToNanoseconds() / 1e9,
        age_s=entry.age.ToNanoseconds() / 1e9,
        num_preemptions=entry.preemption_count,
        num_device_blocks=entry.device_blocks,
        engine=entry.engine,
    )


def explanation(told: pb.ExplainRequestResponse) -> Explanation:
    """In words, with the first of those that are served before it."""
    ahead = [request_line(entry) for entry in told.ahead[:MAX_SHOWN_AHEAD]]
    return Explanation(
        line=request_line(told.request),
        reason=reason_text(told.blocked_by),
        position=position_text(
            told.request.state, told.blocked_by, told.position, is_at_least=told.position_is_lower_bound
        ),
        estimated_wait=_wait(told),
        ahead=tuple(ahead),
        num_ahead_not_shown=max(0, told.position - len(ahead)),
        standings=tuple(Standing(level, value) for level, value in standings_of(told.standing)),
        tenant_prompt_tokens=told.tenant_prefill_tokens,
        tenant_output_tokens=told.tenant_output_tokens,
        scheduling_policy=told.scheduling_policy,
    )


def _wait(told: pb.ExplainRequestResponse) -> str | None:
    if not told.HasField("estimated_wait"):
        return None
    return wait_text(told.estimated_wait.ToNanoseconds() / 1e9, is_at_least=told.position_is_lower_bound)
