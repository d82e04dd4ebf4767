"""The words of quota: limits, charges, verdicts. Plain values; `quota` and what it builds on have the arithmetic.

A limit is a rate (per period, with a burst), a number of live requests, or a budget of one calendar window. It carries
everything that a decision needs, so that a reservation can be settled under the limit that it was made with.
"""

from dataclasses import dataclass, field
from enum import StrEnum

DEFAULT_BURST_DIVISOR = 6
"""The burst of a limit that names none is a sixth of it: ten seconds' worth at a period of one minute."""

OVERDRAFT_NS = 300 * 1_000_000_000
"""The overdraft of a rate that names none is what it refills meanwhile: as long as keys are served from a snapshot."""

OVERDRAFT_DIVISOR = 100
"""The overdraft of a budget that names none is a hundredth of it."""

BucketKey = tuple[str, "Dimension", str, str]
"""(node, dimension, model, calendar window); the last two may be empty."""

RowKey = tuple[str, str, str, str, int]
"""The same with the window's start, 0 where there is none."""


class Dimension(StrEnum):
    """What a limit counts. CONCURRENCY counts live requests, BUDGET the cost units of a calendar window."""

    REQUESTS = "REQUESTS"
    INPUT_TOKENS = "INPUT_TOKENS"
    OUTPUT_TOKENS = "OUTPUT_TOKENS"
    TOTAL_TOKENS = "TOTAL_TOKENS"
    COST_UNITS = "COST_UNITS"
    CONCURRENCY = "CONCURRENCY"
    BUDGET = "BUDGET"


class Mode(StrEnum):
    """What a violated limit does: refuse, only count, or let the work run as best effort while there is room."""

    ENFORCE = "ENFORCE"
    SHADOW = "SHADOW"
    BORROW = "BORROW"


class Calendar(StrEnum):
    """The length of a budget's window. Weeks begin on Monday."""

    DAY = "DAY"
    WEEK = "WEEK"
    MONTH = "MONTH"


class ViolationKind(StrEnum):
    """Why a limit refuses: used up for now, taken by live requests, smaller than this one request, or spent."""

    RATE = "RATE"
    CONCURRENCY = "CONCURRENCY"
    EXCEEDS_BURST = "EXCEEDS_BURST"
    BUDGET = "BUDGET"


@dataclass(frozen=True, slots=True)
class Charge:
    """What a request uses: at reservation the most that it may use, at settlement what it did use.

    `cached_input_tokens` are among `input_tokens`. Raises ValueError if a number is negative.
    """

    requests: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0

    def __post_init__(self) -> None:
        if min(self.requests, self.input_tokens, self.output_tokens, self.cached_input_tokens) < 0:
            raise ValueError("a charge cannot be negative")
        if self.cached_input_tokens > self.input_tokens:
            raise ValueError("cached input tokens are input tokens")

    def plus(self, more: "Charge") -> "Charge":
        """Both together."""
        return Charge(
            self.requests + more.requests,
            self.input_tokens + more.input_tokens,
            self.output_tokens + more.output_tokens,
            self.cached_input_tokens + more.cached_input_tokens,
        )

    def beyond(self, other: "Charge") -> "Charge":
        """What this is more than `other`."""
        input_tokens = max(0, self.input_tokens - other.input_tokens)
        cached = max(0, self.cached_input_tokens - other.cached_input_tokens)
        requests, output_tokens = self.requests - other.requests, self.output_tokens - other.output_tokens
        return Charge(max(0, requests), input_tokens, max(0, output_tokens), min(cached, input_tokens))

    def at_most(self, other: "Charge") -> "Charge":
        """As much of this as `other` covers."""
        input_tokens = min(self.input_tokens, other.input_tokens)
        return Charge(
            min(self.requests, other.requests),
            input_tokens,
            min(self.output_tokens, other.output_tokens),
            min(self.cached_input_tokens, input_tokens),
        )


NOTHING = Charge(requests=0)


@dataclass(frozen=True, slots=True)
class CostWeights:
    """Cost units per token. Whole numbers, so that sums are exact. Raises ValueError if cached input costs more."""

    input_token: int = 1
    cached_input_token: int = 1
    output_token: int = 2

    def __post_init__(self) -> None:
        if min(self.cached_input_token, self.output_token) < 0 or self.cached_input_token > self.input_token:
            raise ValueError("weights cannot be negative, and cached input cannot cost more than other input")

    def cost(self, charge: Charge) -> int:
        """In cost units."""
        uncached = charge.input_tokens - charge.cached_input_tokens
        return (
            uncached * self.input_token
            + charge.cached_input_tokens * self.cached_input_token
            + charge.output_tokens * self.output_token
        )


DEFAULT_WEIGHTS = CostWeights()
"""An output token costs two, as in the engine's accounting; cached input has no discount unless a policy gives one."""


@dataclass(frozen=True, slots=True)
class BudgetWindow:
    """[start, end) in Unix nanoseconds."""

    calendar: Calendar
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `limit` per `period_ns`, `burst` of it at once, for one model or (empty) for all together.

    `node` names the key, team or organization that the limit is on. CONCURRENCY has neither period nor burst, BUDGET
    has `window` in their place. `strict`, `fails_closed` and `max_overdraft` (in the dimension's unit) say what several
    gateways over one store do with it. Raises ValueError if a number is below 1.

    key      where its state is kept: the same through changes of its numbers, its mode and, for budgets, its window
    row_key  the store's row of it, which is of one window
    """

    node: str
    dimension: Dimension
    limit: int
    period_ns: int = 0
    burst: int = 0
    model: str = ""
    window: BudgetWindow | None = None
    weights: CostWeights = DEFAULT_WEIGHTS
    mode: Mode = Mode.ENFORCE
    strict: bool = False
    fails_closed: bool = False
    max_overdraft: int = 0
    key: BucketKey = field(init=False, repr=False, compare=False)
    row_key: RowKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = (self.limit, self.period_ns, self.burst) if self.is_rate else (self.limit,)
        if min(numbers) < 1:
            raise ValueError(f"limit, period_ns and burst of {self.dimension} on {self.node} must be at least 1")
        if self.is_budget != (self.window is not None):
            raise ValueError(f"{self.dimension} on {self.node}: budgets have a calendar window, others have none")
        calendar, start_ns = (self.window.calendar, self.window.start_ns) if self.window else ("", 0)
        # Needed several times per request, and a limit serves many.
        object.__setattr__(self, "key", (self.node, self.dimension, self.model, calendar))
        row_key = (self.node, self.dimension.value, self.model, str(calendar), start_ns)
        object.__setattr__(self, "row_key", row_key)

    @property
    def is_concurrency(self) -> bool:
        return self.dimension is Dimension.CONCURRENCY

    @property
    def is_budget(self) -> bool:
        return self.dimension is Dimension.BUDGET

    @property
    def is_rate(self) -> bool:
        return self.dimension is not Dimension.CONCURRENCY and self.dimension is not Dimension.BUDGET

    def amount(self, charge: Charge) -> int:
        """How much of this limit `charge` takes; a live request counts 1 for concurrency."""
        match self.dimension:
            case Dimension.REQUESTS:
                return charge.requests
            case Dimension.INPUT_TOKENS:
                return charge.input_tokens
            case Dimension.OUTPUT_TOKENS:
                return charge.output_tokens
            case Dimension.TOTAL_TOKENS:
                return charge.input_tokens + charge.output_tokens
            case Dimension.COST_UNITS | Dimension.BUDGET:
                return self.weights.cost(charge)
            case Dimension.CONCURRENCY:
                return 1


@dataclass(frozen=True, slots=True)
class Violation:
    """One limit that refuses. `retry_after_ns` is exact for RATE.

    It is None for CONCURRENCY, because the end of a running request is not known, for EXCEEDS_BURST, which no waiting
    cures, and for BUDGET, whose window tells its end by the calendar; a BUDGET of which other replicas may keep
    something in store has the time until that is back.
    """

    limit: Limit
    kind: ViolationKind
    retry_after_ns: int | None


@dataclass(frozen=True, slots=True)
class Reserved:
    """Every binding limit took the charge, which is all of the reservation so far. Ends with `settle` or `release`.

    `shadow_violations` are of the limits in SHADOW that would have refused. `is_lease_miss`: the store had to be asked.
    """

    reservation_id: str
    charge: Charge
    shadow_violations: tuple[Violation, ...] = ()
    is_lease_miss: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Denied:
    """No limit was charged. `violations` has every limit that refuses, in the order they were given."""

    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class Remaining:
    """What could be reserved now, and how long until all of it can. `reset_ns` is 0 for concurrency and budgets."""

    amount: int
    reset_ns: int


class ReservationEndedError(Exception):
    """The reservation is settled or was never made: nothing can be added to it."""


def default_burst(limit: int) -> int:
    """The burst of a limit that names none, at least 1."""
    return max(1, limit // DEFAULT_BURST_DIVISOR)


def default_overdraft(limit: int, period_ns: int) -> int:
    """The overdraft of a rate, or of a budget (`period_ns` 0), that names none: rounded up."""
    if not period_ns:
        return -(-limit // OVERDRAFT_DIVISOR)
    return -(-limit * OVERDRAFT_NS // period_ns)
