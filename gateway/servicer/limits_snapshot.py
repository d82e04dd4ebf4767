"""What a caller is told beside its answer, in the metadata: which generation it is, and what is left of its limits.

Names and durations of limits are those that clients of hosted models know from HTTP:
`x-ratelimit-remaining-tokens: 1200`, `x-ratelimit-reset-tokens: 6m0s`.
"""

from collections import abc

from gateway.quota_terms import Dimension, Limit, Mode, Remaining
from gateway.servicer.attachment import Served
from gateway.telemetry import current_rpc

NOUNS = {
    Dimension.REQUESTS: "requests",
    Dimension.TOTAL_TOKENS: "tokens",
    Dimension.INPUT_TOKENS: "input-tokens",
    Dimension.OUTPUT_TOKENS: "output-tokens",
}
NS_PER_MS, MS_PER_S = 1_000_000, 1000
GENERATION_ID = "x-evenflow-generation-id"
QUEUE_WAIT = "x-evenflow-queue-wait-ms"


def tell(served: Served) -> None:
    """The call's record has what its caller learns before the first message, even of a stream that is cut there."""
    rpc = current_rpc()
    if rpc is None:
        return
    rpc.initial_metadata[GENERATION_ID] = served.transcript.generation_id
    if served.generation is not None and not served.is_replay:
        tell_limits(served.generation.job.admitted.limits_left)
    outcome = served.transcript.outcome
    if outcome is not None and outcome.timings is not None:
        rpc.initial_metadata[QUEUE_WAIT] = str(outcome.timings.queue_ns // NS_PER_MS)


def tell_limits(limits_left: abc.Iterable[tuple[Limit, Remaining]]) -> None:
    """The call's record has what its caller is told of them, whether it was admitted or refused."""
    rpc = current_rpc()
    if rpc is not None:
        rpc.initial_metadata.update(ratelimit_metadata(limits_left))


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
