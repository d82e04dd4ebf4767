"""Whether the requests of one call could all be reserved now, looked at before the first of them is.

Reserved one by one, the last of them would be told how long it alone has to wait, and a call with more requests than a
limit ever takes would be told to come back.
"""

from collections import abc

from gateway.quota_backend import QuotaBackend
from gateway.quota_terms import Charge, Limit, Mode, Remaining, Violation, ViolationKind


async def find_violations(quota: QuotaBackend, limits: abc.Sequence[Limit], charge: Charge) -> tuple[Violation, ...]:
    """Every binding limit that refuses `charge`, the sum of several requests that run side by side; nothing is held.

    What refuses does so by what the store says now. Raises UnavailableError.
    """
    found = await _known_violations(quota, limits, charge)
    if found:
        await quota.status(limits)
        found = await _known_violations(quota, limits, charge)
    return found


async def _known_violations(quota: QuotaBackend, limits: abc.Sequence[Limit], charge: Charge) -> tuple[Violation, ...]:
    # The backend counts one live request, whatever it is charged.
    found = {violation.limit.key: violation for violation in await quota.check(limits, charge)}
    slots = [limit for limit in limits if limit.is_concurrency and limit.mode is not Mode.SHADOW]
    for limit, left in zip(slots, quota.known(slots), strict=True):
        if (violation := _slot_violation(limit, left, charge.requests)) is not None:
            found[limit.key] = violation
    return tuple(found[limit.key] for limit in limits if limit.key in found)


def _slot_violation(limit: Limit, left: Remaining, num_requests: int) -> Violation | None:
    if num_requests > limit.limit:
        return Violation(limit, ViolationKind.EXCEEDS_BURST, None)
    return Violation(limit, ViolationKind.CONCURRENCY, None) if num_requests > left.amount else None
