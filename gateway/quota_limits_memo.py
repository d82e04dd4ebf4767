"""The limits over a path, made once and used for as long as nothing that they depend on changes.

They are a function of the policies, the model and the moment, and the moment matters only where a grant ends or a
calendar window does: a busy tenant's requests are under the same limits for hours.
"""

from collections import abc
from dataclasses import dataclass
from datetime import datetime

from gateway.quota_limits import NodePolicy, limits_at, unix_ns
from gateway.quota_terms import Limit

MAX_KEPT = 10_000
"""Paths and models. Where more are in use, all are made anew."""

_Key = tuple[str | None, tuple[tuple[str, int], ...]]


@dataclass(frozen=True, slots=True)
class _Made:
    """Right from `since_ns` until before `until_ns`. Has the policies, whose ids are in the key, so that they stay."""

    path: tuple[NodePolicy, ...]
    limits: tuple[Limit, ...]
    since_ns: int
    until_ns: float


class LimitsMemo:
    """`limits_at`, remembered. Policies are values that are never changed, so the same object is the same policy."""

    def __init__(self) -> None:
        self._made: dict[_Key, _Made] = {}

    def __len__(self) -> int:
        return len(self._made)

    def limits_at(self, path: abc.Sequence[NodePolicy], model: str | None, now: datetime) -> tuple[Limit, ...]:
        """See there."""
        key = (model, tuple([(level.node, id(level.policy)) for level in path]))
        now_ns = unix_ns(now)
        made = self._made.get(key)
        if made is None or not made.since_ns <= now_ns < made.until_ns:
            limits = limits_at(path, model, now)
            made = _Made(tuple(path), limits, now_ns, _until_ns(path, limits, now_ns))
            if len(self._made) >= MAX_KEPT:
                self._made.clear()
            self._made[key] = made
        return made.limits


def _until_ns(path: abc.Iterable[NodePolicy], limits: abc.Iterable[Limit], now_ns: int) -> float:
    """When the next grant or calendar window ends."""
    ends_ns = [unix_ns(grant.expires_at) for level in path for grant in level.policy.grants]
    ends_ns += [limit.window.end_ns for limit in limits if limit.window is not None]
    return min((end_ns for end_ns in ends_ns if end_ns > now_ns), default=float("inf"))
