"""How tokens are drawn, from the wire: every field is checked here, and trusted further in.

Raises InvalidFieldError with the wire's field name. Knows no vocabulary but its size.
"""

from collections import abc
from dataclasses import dataclass

from engine.core.types import SamplingParams
from engine.errors import InvalidFieldError
from engine.grammars.source import GrammarKind, GrammarSource, NamedSchema
from evenflow.engine.v1 import engine_pb2 as pb

MAX_STOP_TOKEN_IDS = 256
MAX_NUM_LOGPROBS = 20
MAX_BIASES = 1024


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from `low` to `high`; `low` itself belongs to it unless `is_low_open`."""

    low: float
    high: float
    is_low_open: bool = False

    def holds(self, value: float) -> bool:
        """False for NaN, too."""
        return self.low <= value <= self.high and not (self.is_low_open and value == self.low)

    def __str__(self) -> str:
        return f"{'(' if self.is_low_open else '['}{self.low:g}, {self.high:g}]"


# The public API's ranges: `evenflow.inference.v1.SamplingOptions`.
SAMPLING_INTERVALS = {
    "temperature": Interval(0, 100),
    "top_p": Interval(0, 1, is_low_open=True),
    "min_p": Interval(0, 1),
    "repetition_penalty": Interval(0, 100, is_low_open=True),
    "presence_penalty": Interval(-2, 2),
    "frequency_penalty": Interval(-2, 2),
    "num_logprobs": Interval(0, MAX_NUM_LOGPROBS),
    "num_prompt_logprobs": Interval(0, MAX_NUM_LOGPROBS),
}
BIASES = Interval(-100, 100)


def check(field: str, is_valid: bool, problem: str) -> None:
    """Raises InvalidFieldError unless `is_valid`."""
    if not is_valid:
        raise InvalidFieldError(field, problem)


def check_token_ids(field: str, token_ids: abc.Sequence[int], vocabulary_size: int) -> None:
    """Raises InvalidFieldError for an id that the model does not have."""
    if token_ids and max(token_ids) >= vocabulary_size:
        raise InvalidFieldError(field, f"must be below the vocabulary's size, {vocabulary_size}")


def sampling_from_pb(start: pb.StartGeneration, vocabulary_size: int) -> SamplingParams:
    """All but the constraint, which has to be compiled: see `grammar_from_pb`."""
    check("sampling", start.HasField("sampling"), "is required")
    sampling = start.sampling
    for name, interval in SAMPLING_INTERVALS.items():
        check(f"sampling.{name}", interval.holds(getattr(sampling, name)), f"must be in {interval}")
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=sampling.seed,
        num_logprobs=sampling.num_logprobs if sampling.HasField("num_logprobs") else None,
        num_prompt_logprobs=sampling.num_prompt_logprobs if sampling.HasField("num_prompt_logprobs") else None,
        logit_biases=_logit_biases(sampling, vocabulary_size),
        allowed_token_ids=_allowed_token_ids(sampling, vocabulary_size),
    )


def grammar_from_pb(sampling: pb.Sampling) -> GrammarSource | None:
    """What the output has to be; None: anything."""
    if not sampling.HasField("grammar"):
        return None
    kind = sampling.grammar.WhichOneof("source")
    if kind is None:
        raise InvalidFieldError("sampling.grammar", "is empty, or of a kind that this engine does not know")
    parts = [NamedSchema(part.field, part.json_schema) for part in sampling.grammar.parts]
    return GrammarSource(GrammarKind(kind), getattr(sampling.grammar, kind), tuple(parts), sampling.grammar.field)


def stop_token_ids(sampling: pb.Sampling, vocabulary_size: int, end_token_ids: frozenset[int]) -> frozenset[int]:
    """The request's, and those that end every output that does not ignore them."""
    token_ids = sampling.stop_token_ids
    check("sampling.stop_token_ids", len(token_ids) <= MAX_STOP_TOKEN_IDS, f"must be at most {MAX_STOP_TOKEN_IDS}")
    check_token_ids("sampling.stop_token_ids", token_ids, vocabulary_size)
    return frozenset(token_ids) | (frozenset() if sampling.ignore_eos else end_token_ids)


def _logit_biases(sampling: pb.Sampling, vocabulary_size: int) -> tuple[tuple[int, float], ...]:
    token_ids, biases = sampling.biased_token_ids, sampling.biases
    check("sampling.biased_token_ids", len(token_ids) <= MAX_BIASES, f"must be at most {MAX_BIASES}")
    check("sampling.biases", len(biases) == len(token_ids), "must have one entry for each biased token")
    check("sampling.biased_token_ids", len(set(token_ids)) == len(token_ids), "must hold each token once")
    check_token_ids("sampling.biased_token_ids", token_ids, vocabulary_size)
    check("sampling.biases", all(map(BIASES.holds, biases)), f"must be in {BIASES}")
    return tuple(zip(token_ids, biases, strict=True))


def _allowed_token_ids(sampling: pb.Sampling, vocabulary_size: int) -> tuple[int, ...] | None:
    token_ids = sampling.allowed_token_ids
    check("sampling.allowed_token_ids", len(token_ids) <= vocabulary_size, "must hold each token of the model once")
    check_token_ids("sampling.allowed_token_ids", token_ids, vocabulary_size)
    return tuple(token_ids) or None
