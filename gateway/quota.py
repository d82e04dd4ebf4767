"""Quota arithmetic: an exact GCRA per (node, dimension, model), and sets of live requests for concurrency.

Knows nothing of Postgres, gRPC or the clock: limits and `now_ns` come in as arguments, and nothing here awaits, so that
a reservation over the whole path key → team → organization is atomic on one event loop.

A tick is 1/limit of a nanosecond, which makes every quantity an integer and every rule exact: with whole nanoseconds a
limit of 7 per minute and burst 1 would admit nothing, because ceil(P/L) > floor(P/L).

    inc(c) = c · period      tol = burst · period      clock = now · limit                                      (ticks)
    admit(c)                 new = max(tat, clock) + inc(c)
        c > burst                -> refused for ever
        new - clock <= tol       -> tat = new
        otherwise                -> refused, retry after ceil((new - clock - tol) / limit) ns
    settle, actual < reserved    -> tat -= inc(reserved - actual); a tat behind the clock is a full bucket, never more
    settle, actual > reserved    -> tat = max(tat, clock) + inc(actual - reserved), whatever the limit says
    remaining = floor((tol - max(0, tat - clock)) / period)

In any window W that ends with an admission, reservations and debts minus refunds are <= burst + limit · W / period:
each moves tat by its inc, and an admission leaves tat at most tol ahead of the clock.
Source: ITU-T I.371, generic cell rate algorithm.
"""

from collections import OrderedDict, abc
from dataclasses import dataclass
from enum import StrEnum

DEFAULT_BURST_DIVISOR = 6
"""The burst of a limit that names none is a sixth of it: ten seconds' worth at a period of one minute."""

SWEEP_RATIO = 2
"""Buckets looked at for forgetting per bucket that a reservation may add; above 1 the idle ones cannot pile up."""

BucketKey = tuple[str, "Dimension", str]


class Dimension(StrEnum):
    """What a limit counts. CONCURRENCY counts live requests, the others what requests use up."""

    REQUESTS = "REQUESTS"
    INPUT_TOKENS = "INPUT_TOKENS"
    OUTPUT_TOKENS = "OUTPUT_TOKENS"
    TOTAL_TOKENS = "TOTAL_TOKENS"
    CONCURRENCY = "CONCURRENCY"


class ViolationKind(StrEnum):
    """Why a limit refuses: used up for now, taken by live requests, or smaller than this one request."""

    RATE = "RATE"
    CONCURRENCY = "CONCURRENCY"
    EXCEEDS_BURST = "EXCEEDS_BURST"


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `limit` per `period_ns`, `burst` of it at once, for one model or (empty) for all together.

    `node` names the key, team or organization that the limit is on. CONCURRENCY has neither period nor burst.
    Raises ValueError if a number is below 1.
    """

    node: str
    dimension: Dimension
    limit: int
    period_ns: int = 0
    burst: int = 0
    model: str = ""

    def __post_init__(self) -> None:
        numbers = (self.limit,) if self.is_concurrency else (self.limit, self.period_ns, self.burst)
        if min(numbers) < 1:
            raise ValueError(f"limit, period_ns and burst of {self.dimension} on {self.node} must be at least 1")

    @property
    def is_concurrency(self) -> bool:
        return self.dimension is Dimension.CONCURRENCY

    @property
    def key(self) -> BucketKey:
        return (self.node, self.dimension, self.model)


@dataclass(frozen=True, slots=True)
class Charge:
    """What a request uses: at reservation the most that it may use, at settlement what it did use."""

    requests: int = 1
    input_tokens: int = 0
    output_tokens: int = 0

    def __post_init__(self) -> None:
        if min(self.requests, self.input_tokens, self.output_tokens) < 0:
            raise ValueError("a charge cannot be negative")

    def amount(self, dimension: Dimension) -> int:
        """How much of `dimension` this is; a live request counts 1 for concurrency."""
        match dimension:
            case Dimension.REQUESTS:
                return self.requests
            case Dimension.INPUT_TOKENS:
                return self.input_tokens
            case Dimension.OUTPUT_TOKENS:
                return self.output_tokens
            case Dimension.TOTAL_TOKENS:
                return self.input_tokens + self.output_tokens
            case Dimension.CONCURRENCY:
                return 1


NOTHING = Charge(requests=0)


@dataclass(frozen=True, slots=True)
class Violation:
    """One limit that refuses. `retry_after_ns` is exact for RATE.

    It is None for CONCURRENCY, because the end of a running request is not known, and for EXCEEDS_BURST, which no
    waiting cures.
    """

    limit: Limit
    kind: ViolationKind
    retry_after_ns: int | None


@dataclass(frozen=True, slots=True)
class Reserved:
    """Every limit took the charge. Ends with `settle` or `release`."""

    reservation_id: str
    charge: Charge


@dataclass(frozen=True, slots=True)
class Denied:
    """No limit was charged. `violations` has every limit that refuses, in the order they were given."""

    violations: tuple[Violation, ...]

    @property
    def is_retryable(self) -> bool:
        return all(violation.kind is not ViolationKind.EXCEEDS_BURST for violation in self.violations)


@dataclass(frozen=True, slots=True)
class Remaining:
    """What could be reserved now, and how long until all of it can. `reset_ns` is 0 for concurrency."""

    amount: int
    reset_ns: int


@dataclass(slots=True)
class _Bucket:
    """Theoretical arrival time in ticks of 1/`ticks_per_ns` ns. Written by QuotaBook only."""

    tat: int
    ticks_per_ns: int


@dataclass(frozen=True, slots=True)
class _Reservation:
    limits: tuple[Limit, ...]
    charge: Charge


class QuotaBook:
    """The buckets and live requests of one process. Buckets that are full again are forgotten."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[BucketKey, _Bucket] = OrderedDict()
        self._live: dict[BucketKey, set[str]] = {}
        self._reservations: dict[str, _Reservation] = {}

    @property
    def num_buckets(self) -> int:
        return len(self._buckets)

    @property
    def num_reservations(self) -> int:
        return len(self._reservations)

    def reserve(
        self, reservation_id: str, limits: abc.Sequence[Limit], charge: Charge, now_ns: int
    ) -> Reserved | Denied:
        """Charge every limit or none. Raises ValueError if the id is live or two limits share a bucket."""
        if reservation_id in self._reservations:
            raise ValueError(f"reservation {reservation_id} is live")
        if len({limit.key for limit in limits}) != len(limits):
            raise ValueError("two limits share a node, a dimension and a model")
        violations = tuple(v for limit in limits if (v := self._violation(limit, charge, now_ns)) is not None)
        if violations:
            return Denied(violations)
        self._forget_idle(SWEEP_RATIO * len(limits), now_ns)
        for limit in limits:
            if limit.is_concurrency:
                self._live.setdefault(limit.key, set()).add(reservation_id)
            else:
                self._add(limit, charge.amount(limit.dimension), now_ns)
        self._reservations[reservation_id] = _Reservation(tuple(limits), charge)
        return Reserved(reservation_id, charge)

    def settle(self, reservation_id: str, actual: Charge, now_ns: int) -> bool:
        """Replace the reserved charge by the actual one and end the request; false, and nothing done, if it has ended.

        The difference counts at the limit under which it was reserved, also if that has changed since.
        """
        reservation = self._reservations.pop(reservation_id, None)
        if reservation is None:
            return False
        for limit in reservation.limits:
            if limit.is_concurrency:
                self._leave(limit.key, reservation_id)
                continue
            excess = actual.amount(limit.dimension) - reservation.charge.amount(limit.dimension)
            if excess > 0:
                self._add(limit, excess, now_ns)
            elif excess < 0:
                self._refund(limit, -excess)
        return True

    def release(self, reservation_id: str, now_ns: int) -> bool:
        """Settle with nothing used: the request never ran."""
        return self.settle(reservation_id, NOTHING, now_ns)

    def remaining(self, limit: Limit, now_ns: int) -> Remaining:
        """What one more request could reserve of `limit`."""
        if limit.is_concurrency:
            return Remaining(max(0, limit.limit - len(self._live.get(limit.key, ()))), 0)
        lead = self._lead(limit, now_ns)
        tolerance = limit.burst * limit.period_ns
        return Remaining(max(0, tolerance - lead) // limit.period_ns, _ceil_div(lead, limit.limit))

    def _violation(self, limit: Limit, charge: Charge, now_ns: int) -> Violation | None:
        if limit.is_concurrency:
            is_full = len(self._live.get(limit.key, ())) >= limit.limit
            return Violation(limit, ViolationKind.CONCURRENCY, None) if is_full else None
        amount = charge.amount(limit.dimension)
        if amount > limit.burst:
            return Violation(limit, ViolationKind.EXCEEDS_BURST, None)
        excess = self._lead(limit, now_ns) + (amount - limit.burst) * limit.period_ns
        return Violation(limit, ViolationKind.RATE, _ceil_div(excess, limit.limit)) if excess > 0 else None

    def _lead(self, limit: Limit, now_ns: int) -> int:
        """How far the bucket's tat is ahead of the clock, in ticks of `limit`; 0 if it is full."""
        bucket = self._buckets.get(limit.key)
        if bucket is None:
            return 0
        return max(0, _rescale(bucket.tat, bucket.ticks_per_ns, limit.limit) - now_ns * limit.limit)

    def _add(self, limit: Limit, amount: int, now_ns: int) -> None:
        tat = now_ns * limit.limit + self._lead(limit, now_ns) + amount * limit.period_ns
        bucket = self._buckets.get(limit.key)
        if bucket is None:
            self._buckets[limit.key] = _Bucket(tat, limit.limit)
        else:
            bucket.tat, bucket.ticks_per_ns = tat, limit.limit

    def _refund(self, limit: Limit, amount: int) -> None:
        bucket = self._buckets.get(limit.key)
        if bucket is not None:
            # Rounded down where the limit has changed since: rounding never mints credit.
            bucket.tat -= amount * limit.period_ns * bucket.ticks_per_ns // limit.limit

    def _leave(self, key: BucketKey, reservation_id: str) -> None:
        live = self._live[key]
        live.discard(reservation_id)
        if not live:
            del self._live[key]

    def _forget_idle(self, num_buckets: int, now_ns: int) -> None:
        """Look at the buckets that were looked at longest ago; busy ones go to the back."""
        for _ in range(min(num_buckets, len(self._buckets))):
            key, bucket = self._buckets.popitem(last=False)
            if bucket.tat > now_ns * bucket.ticks_per_ns:
                self._buckets[key] = bucket


def default_burst(limit: int) -> int:
    """The burst of a limit that names none, at least 1."""
    return max(1, limit // DEFAULT_BURST_DIVISOR)


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _rescale(ticks: int, old_ticks_per_ns: int, new_ticks_per_ns: int) -> int:
    """The same instant in other ticks, rounded up so that a changed limit never mints credit."""
    if old_ticks_per_ns == new_ticks_per_ns:
        return ticks
    return _ceil_div(ticks * new_ticks_per_ns, old_ticks_per_ns)
