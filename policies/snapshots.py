"""The bytes in which policies carry their counters over: one JSON object, `policy` and what that policy needs.

A policy that counts service has a key `counters`: per tenant its service over its weight, in cost units. Only the
differences of these numbers mean something, so another counting policy can go on from them.
"""

import json
import math
from typing import Any

from engine.core.types import TenantId


def dump(policy: str, **state: object) -> bytes:
    """The snapshot of `policy`; equal states give equal bytes."""
    return json.dumps({"policy": policy, **state}, sort_keys=True).encode()


def load(policy: str, snapshot: bytes) -> dict[str, Any]:  # parsed JSON: each policy checks its own keys
    """The snapshot's object. Raises ValueError unless it is one of `policy`."""
    state = _parse(policy, snapshot)
    if state.get("policy") != policy:
        raise ValueError(f"this is not a snapshot of {policy}")
    return state


def load_counters(policy: str, snapshot: bytes) -> tuple[dict[TenantId, float], dict[str, Any]]:  # see load
    """Service per tenant from the snapshot of any policy that counts, and the whole object.

    Raises ValueError, naming `policy`, if the snapshot has no counters or one of them is not finite.
    """
    state = _parse(policy, snapshot)
    counters = state.get("counters")
    if not isinstance(counters, dict):
        raise ValueError(f"{policy} cannot take over a snapshot without counters")
    return {TenantId(tenant_id): finite(policy, value) for tenant_id, value in counters.items()}, state


def finite(policy: str, value: object) -> float:
    """Raises ValueError, naming `policy`, unless `value` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a snapshot of {policy} holds finite numbers, not {value!r}")
    return float(value)


def _parse(policy: str, snapshot: bytes) -> dict[str, Any]:  # see load
    try:
        state = json.loads(snapshot)
    except ValueError as error:
        raise ValueError(f"this is not a snapshot of {policy}") from error
    if not isinstance(state, dict):
        raise ValueError(f"this is not a snapshot of {policy}")
    return state
