"""What is left of a caller's limits, as metadata entries of an answer.

Names and durations are those that clients of hosted models know from HTTP: `x-ratelimit-remaining-tokens: 1200`,
`x-ratelimit-reset-tokens: 6m0s`.
"""

from collections import abc

from gateway.quota_terms import Dimension, Limit, Mode, Remaining

NOUNS = {
    Dimension.REQUESTS: "requests",
    Dimension.TOTAL_TOKENS: "tokens",
    Dimension.INPUT_TOKENS: "input-tokens",
    Dimension.OUTPUT_TOKENS: "output-tokens",
}
NS_PER_MS, MS_PER_S = 1_000_000, 1000


def ratelimit_metadata(limits_left: abc.Iterable[tuple[Limit, Remaining]]) -> dict[str, str]:
    """For each dimension of `NOUNS` its limit, what is left, and how long until all of it is.

    Of several limits on one dimension the one with the least left speaks; one that refuses nobody does not.
    """
    tightest: dict[Dimension, tuple[Limit, Remaining]] = {}
    for limit, remaining in limits_left:
        if limit.dimension not in NOUNS or limit.mode is Mode.SHADOW:
            continue
        known = tightest.get(limit.dimension)
        if known is None or remaining.amount < known[1].amount:
            tightest[limit.dimension] = (limit, remaining)
    entries: dict[str, str] = {}
    for dimension, (limit, remaining) in tightest.items():
        noun = NOUNS[dimension]
        entries[f"x-ratelimit-limit-{noun}"] = str(limit.limit)
        entries[f"x-ratelimit-remaining-{noun}"] = str(remaining.amount)
        entries[f"x-ratelimit-reset-{noun}"] = duration_text(remaining.reset_ns)
    return entries


def duration_text(length_ns: int) -> str:
    """`0s`, `17ms`, `1s`, `6m0s`, `1h2m3s`; rounded up, so that nobody comes too early."""
    length_ms = -(-length_ns // NS_PER_MS)
    if 0 < length_ms < MS_PER_S:
        return f"{length_ms}ms"
    minutes, seconds = divmod(-(-length_ms // MS_PER_S), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
