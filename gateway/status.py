"""What the parts of a running gateway report about themselves: the figures behind `evenflow status`.

Plain values. Who collects them is the composition root; who shows them is the admin service.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TenantStats:
    """One tenant as the engine sees it. `path` is (organization id, team id); tokens are totals since it began."""

    path: tuple[str, ...]
    weight: float
    num_running: int
    num_waiting: int
    num_prefill_tokens: int
    num_output_tokens: int
    num_recomputed_tokens: int
    standing: float


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's figures at one moment. `mean_step_ms` covers its last steps."""

    scheduling_policy: str
    preemption_policy: str
    num_running: int
    num_waiting: int
    num_paused: int
    num_swapped: int
    num_free_device_blocks: int
    num_device_blocks: int
    block_size: int
    num_steps: int
    num_preemptions: int
    mean_step_ms: float
    tenants: tuple[TenantStats, ...]
    is_draining: bool


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One engine of the gateway's list. `stats` is None exactly when it did not answer."""

    address: str
    model: str
    stats: EngineStats | None


@dataclass(frozen=True, slots=True)
class SystemReport:
    """The whole gateway. `policy_revision` is the one in force here; 0 before the first snapshot was read."""

    uptime_s: float
    is_store_reachable: bool
    policy_revision: int
    engines: tuple[EngineReport, ...]
    num_live_requests: int
