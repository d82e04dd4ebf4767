"""One request of a trace, before any engine has seen it. Knows neither files nor schedulers.

*Traffic* is any iterable of `Arrival` in order of time. It is streamed: nothing here or behind it keeps the rows.
"""

from collections import abc
from dataclasses import dataclass

NANOS_PER_S = 1_000_000_000
MAX_SPAN_S = 10 * 366 * 86_400  # ten years; what is beyond is a mistake, and its sums would leave 64 bits
MAX_TOKENS = 10_000_000  # of one prompt or output
DEFAULT_CLASS = "default"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that arrives `at_ns` after the start of its traffic.

    tenant             path "organization/team"
    num_prompt_tokens, num_output_tokens   both at least 1; the output is generated in full unless it is cancelled
    prefix_ids         what the beginning of the prompt holds, in pieces of `prefix_block_size` tokens each: equal ids
                       at equal places are equal tokens, so that a prefix cache may reuse them. The prompt beyond
                       `len(prefix_ids) * prefix_block_size` tokens, all of it where there are none, is its own; a
                       piece that reaches past the prompt is cut.
    cancel_after_ns    the client gives up this long after the arrival, unless it is done by then
    deadline_after_ns  the client has no use for an answer that ends later than this after the arrival
    """

    at_ns: int
    tenant: str
    num_prompt_tokens: int
    num_output_tokens: int
    priority_class: str = DEFAULT_CLASS
    prefix_ids: tuple[int, ...] = ()
    prefix_block_size: int = 0
    cancel_after_ns: int | None = None
    deadline_after_ns: int | None = None


Traffic = abc.Iterable[Arrival]
"""Arrivals in order of time. Iterating it again gives the same arrivals."""
