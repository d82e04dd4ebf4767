"""Which names may be labels of metrics: few of the many there are. All others are one, `other`. Pure."""

import time
from collections import OrderedDict, abc

from gateway.metric_names import OTHER_TENANTS

MAX_TENANTS = 100
IDLE_S = 3600.0


class TenantLabels:
    """The first `max_tenants` that are heard of; one of which nothing was heard for `idle_s` makes room for another.

    on_gone  is told of each that lost its label. What was counted under it is gone with it, and not in `other`: a
             counter that rises by what it did not count would look like load.
    """

    def __init__(
        self,
        max_tenants: int = MAX_TENANTS,
        idle_s: float = IDLE_S,
        on_gone: abc.Callable[[str], None] = lambda _: None,
        clock: abc.Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_tenants = max_tenants
        self._idle_s = idle_s
        self._on_gone = on_gone
        self._clock = clock
        self._seen_s: OrderedDict[str, float] = OrderedDict()  # longest ago first

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._seen_s

    def __iter__(self) -> abc.Iterator[str]:
        return iter(self._seen_s)

    def label(self, tenant: str) -> str:
        """The label for something that `tenant` just did."""
        now_s = self._clock()
        if tenant not in self._seen_s and not self._has_room(now_s):
            return OTHER_TENANTS
        self._seen_s[tenant] = now_s
        self._seen_s.move_to_end(tenant)
        return tenant

    def _has_room(self, now_s: float) -> bool:
        if len(self._seen_s) < self._max_tenants:
            return True
        longest, seen_s = next(iter(self._seen_s.items()))
        if now_s - seen_s < self._idle_s:
            return False
        del self._seen_s[longest]
        self._on_gone(longest)
        return True
