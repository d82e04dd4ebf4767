"""Which tenants share the engine now: those that have work, and those that were served lately. The clock comes in."""

import threading
from collections import abc
from dataclasses import dataclass, field

from engine.core.stats import TenantStats
from engine.core.types import TenantId
from engine.server.shares import has_work, work_of

# As long as the rates in deploy/prometheus/rules.yml, which what the weights give is compared with.
LATELY_S = 300.0


@dataclass(slots=True)
class ServedLately:
    """Remembers of every tenant what it was served, and when that was last found to have grown.

    Written by `observe` only, on any thread.
    """

    window_s: float = LATELY_S
    _grown: dict[TenantId, tuple[float, float]] = field(default_factory=dict)
    _looking: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, tenants: abc.Sequence[TenantStats], now_s: float) -> list[TenantStats]:
        """Those of `tenants` that have work, or were served in the last `window_s` as far as anybody looked."""
        with self._looking:
            grown = {}
            for tenant in tenants:
                work, before = work_of(tenant), self._grown.get(tenant.tenant_id, (0.0, float("-inf")))
                grown[tenant.tenant_id] = before if work == before[0] else (work, now_s)
            self._grown = grown
        since_s = now_s - self.window_s
        return [tenant for tenant in tenants if has_work(tenant) or grown[tenant.tenant_id][1] >= since_s]
