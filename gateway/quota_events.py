"""From a refusal to its record."""

import math
from collections import abc

from uuid_utils.compat import uuid7

from gateway.admission_terms import Asked
from gateway.quota_refusals import wait_s_of
from gateway.quota_terms import Violation, ViolationKind
from gateway.store.denials import DenialEvent

UNKNOWN_WAIT_MS = -1
MS_PER_S = 1000


def denial_event(asked: Asked, violations: abc.Sequence[Violation], reason: str) -> DenialEvent:
    """What is kept of a request that `violations` refused; without a `reason` they were those of shadows."""
    demand, team = asked.demand, asked.team
    return DenialEvent(
        id=uuid7(),
        denied_at=asked.now,
        organization_id=team.organization.id,
        team_id=team.id,
        key_id=asked.principal.key_id,
        model=demand.model,
        priority_class=asked.priority_class.name,
        input_tokens=demand.num_input_tokens,
        max_output_tokens=demand.max_output_tokens,
        reserved_tokens=asked.charge.input_tokens + asked.charge.output_tokens,
        reason=reason,
        is_shadow=not reason,
        nodes=tuple(violation.limit.node for violation in violations),
        dimensions=tuple(violation.limit.dimension.value for violation in violations),
        waits_ms=tuple(_wait_ms(violation, asked) for violation in violations),
        policy_revision=asked.policy_revision,
    )


def _wait_ms(violation: Violation, asked: Asked) -> int:
    wait_s = wait_s_of(violation, asked.now)
    is_known = math.isfinite(wait_s) and violation.kind is not ViolationKind.CONCURRENCY
    return math.ceil(wait_s * MS_PER_S) if is_known else UNKNOWN_WAIT_MS
