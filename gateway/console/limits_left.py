"""What is left of a tenant's limits, as rows for people."""

from collections import abc
from dataclasses import dataclass

from gateway.admission import Admission
from gateway.admission_terms import organization_policies, team_policies
from gateway.console.templating import duration
from gateway.quota_limits import NodePolicy
from gateway.quota_terms import Limit, Remaining
from gateway.store.snapshot import KeyRecord, OrganizationRecord, TeamRecord
from gateway.words import number

LOW_SHARE, EMPTY_SHARE = 0.25, 0.05
UNIT_BY_DIMENSION = {
    "REQUESTS": "requests",
    "INPUT_TOKENS": "input tokens",
    "OUTPUT_TOKENS": "output tokens",
    "TOTAL_TOKENS": "tokens",
    "COST_UNITS": "cost units",
    "CONCURRENCY": "requests at once",
    "BUDGET": "cost units",
}


@dataclass(frozen=True, slots=True)
class LimitLeft:
    """`most` is what can be left: a rate's burst, otherwise the limit. `kind` says how the share is to be shown."""

    node: str
    rule: str
    model: str
    mode: str
    left: int
    most: int
    again_in: str

    @property
    def share(self) -> float:
        return self.left / self.most

    @property
    def kind(self) -> str:
        return "bad" if self.share <= EMPTY_SHARE else "warn" if self.share <= LOW_SHARE else ""


async def team_limits(admission: Admission, team: TeamRecord) -> list[LimitLeft]:
    """From the team's own up."""
    return await _left(admission, team_policies(team))


async def organization_limits(admission: Admission, organization: OrganizationRecord) -> list[LimitLeft]:
    return await _left(admission, organization_policies(organization))


async def key_limits(admission: Admission, key: KeyRecord, name: str) -> list[LimitLeft]:
    """The key's own, not those above it."""
    return [] if key.policy is None else await _left(admission, (NodePolicy(name, key.policy),))


async def _left(admission: Admission, policies: tuple[NodePolicy, ...]) -> list[LimitLeft]:
    return [_shown(limit, remaining) for limit, remaining in await admission.left_of(policies)]


def _shown(limit: Limit, remaining: Remaining) -> LimitLeft:
    return LimitLeft(
        node=limit.node,
        rule=rule_text(limit),
        model=limit.model,
        mode=limit.mode.value.lower(),
        left=remaining.amount,
        most=limit.burst if limit.is_rate else limit.limit,
        again_in=duration(remaining.reset_ns / 1e9) if remaining.reset_ns else "",
    )


def rule_text(limit: Limit) -> str:
    """`60 requests per 1 min, 10 at once`."""
    amount = f"{number(limit.limit)} {UNIT_BY_DIMENSION[limit.dimension.value]}"
    if limit.window is not None:
        return f"{amount} per {limit.window.calendar.value.lower()}"
    if limit.is_rate:
        return f"{amount} per {duration(limit.period_ns / 1e9)}, {number(limit.burst)} at once"
    return amount


def own_first(limits: abc.Iterable[LimitLeft]) -> list[LimitLeft]:
    """The scarcest first, within what is on one node."""
    return sorted(limits, key=lambda each: (-each.node.count("/"), each.share))
