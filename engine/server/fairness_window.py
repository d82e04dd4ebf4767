"""How evenly tenants that were denied something were served lately: Jain's index. Pure; the clock comes in.

It is of work over what the weights give each among these tenants. 1 is even, 1/n is everything for one of n.
"""

from collections import abc
from dataclasses import dataclass, field

from engine.core.evenness import jain_index
from engine.core.stats import TenantStats
from engine.core.types import TenantId
from engine.server.shares import is_denied, weight_shares, work_of

WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class Evenness:
    """Of the last whole window: the index of the tenants that were denied something at both of its ends, how many they
    were. Of fewer than two the index is 1."""

    jain_index: float = 1.0
    num_tenants: int = 0


@dataclass(slots=True)
class FairnessWindow:
    """Looks when it is asked, and ends a window when that is `window_s` after its begin. Written by itself only."""

    window_s: float = WINDOW_S
    last: Evenness = field(default_factory=Evenness)
    _begun_s: float | None = None
    _work_at_begin: dict[TenantId, float] = field(default_factory=dict)

    def observe(self, tenants: abc.Sequence[TenantStats], now_s: float) -> Evenness:
        """The evenness as of the last window that has ended by `now_s`."""
        if self._begun_s is not None and now_s - self._begun_s < self.window_s:
            return self.last
        denied = list(filter(is_denied, tenants))
        if self._begun_s is not None:
            self.last = self._evenness([tenant for tenant in denied if tenant.tenant_id in self._work_at_begin])
        self._begun_s = now_s
        self._work_at_begin = {tenant.tenant_id: work_of(tenant) for tenant in denied}
        return self.last

    def _evenness(self, compared: abc.Sequence[TenantStats]) -> Evenness:
        fair = weight_shares(compared)
        index = jain_index(
            [(work_of(tenant) - self._work_at_begin[tenant.tenant_id]) / fair[tenant.tenant_id] for tenant in compared]
        )
        return Evenness(1.0 if index is None or len(compared) < 2 else index, len(compared))
