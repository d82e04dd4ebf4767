"""Beam search on the wire: what is asked for, checked field by field, and what was found.

Raises InvalidFieldError with the wire's field name.
"""

import math
from collections import abc

from engine.core.events import BeamFound
from engine.core.plan import TokenLogprobs
from engine.core.types import BeamSearchParams, FinishReason
from engine.server.sampling_messages import Interval, check
from evenflow.engine.v1 import engine_pb2 as pb

WIDTHS = range(2, 17)
LENGTH_PENALTIES = Interval(-10, 10)
_REASONS = {FinishReason.STOP: pb.FINISH_REASON_STOP, FinishReason.LENGTH: pb.FINISH_REASON_LENGTH}


def beam_search_from_pb(start: pb.StartGeneration) -> BeamSearchParams | None:
    """The search that is asked for; None: the output is drawn. Whether it fits the pool is for the scheduler to say."""
    if not start.HasField("beam_search"):
        return None
    asked, sampling = start.beam_search, start.sampling
    check("beam_search.width", asked.width in WIDTHS, f"must be from {WIDTHS[0]} to {WIDTHS[-1]}")
    check("beam_search.num_returned", 1 <= asked.num_returned <= asked.width, "must be from 1 to width")
    is_penalty = math.isfinite(asked.length_penalty) and LENGTH_PENALTIES.holds(asked.length_penalty)
    check("beam_search.length_penalty", is_penalty, f"must be in {LENGTH_PENALTIES}")
    is_greedy = not sampling.temperature and not sampling.top_k and sampling.top_p == 1 and not sampling.min_p
    check("beam_search", is_greedy, "draws nothing: temperature, top_k and min_p must be 0 and top_p 1")
    check("sampling.grammar", not sampling.HasField("grammar"), "does not go together with beam_search")
    is_scored = sampling.HasField("num_prompt_logprobs")
    check("sampling.num_prompt_logprobs", not is_scored, "does not go together with beam_search")
    return BeamSearchParams(asked.width, asked.num_returned, asked.length_penalty, asked.early_stopping)


def found_to_pb(found: BeamFound, logprobs_to_pb: abc.Callable[[TokenLogprobs], pb.TokenLogprobs]) -> pb.TokenChunk:
    """One hypothesis, whole."""
    hypothesis = found.hypothesis
    return pb.TokenChunk(
        index=found.rank,
        token_ids=hypothesis.token_ids,
        logprobs=[logprobs_to_pb(entry) for entry in hypothesis.logprobs],
        beam=pb.BeamResult(
            score=hypothesis.score,
            cumulative_logprob=hypothesis.cumulative_logprob,
            reason=_REASONS[hypothesis.reason],
        ),
    )
