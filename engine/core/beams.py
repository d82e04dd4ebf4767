"""Beam search as a pure function: the likeliest next tokens of each beam in, the beams of the next round out.

Of all candidates, each scored by the sum of its beam's log-probabilities and its own, those that end the output finish
a hypothesis if they are among the first `width`; the best `width` of the others are the next beams. Of hypotheses the
best `width` are kept, by sum / length ** length_penalty. The search ends when every beam has its full length; with
early stopping as soon as `width` hypotheses are finished; else when the best beam, scored as it is, is no better than
the worst of `width` finished ones, which it might still become if the penalty is positive.

Source: `generate` of Hugging Face transformers 5 with `num_beams` and without sampling, whose results these are. There
`(1 + ends) * width` candidates are ranked, so that `width` of them go on; here as many as it takes.
"""

from collections import abc
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.core.plan import Candidate, TokenLogprobs
from engine.core.types import BeamSearchParams, FinishReason


class Tip(NamedTuple):
    """The end of a beam at the end of a round: the sum of its tokens' log-probabilities, and what may follow them,
    the likeliest first."""

    cumulative_logprob: float
    candidates: abc.Sequence[Candidate]


class Child(NamedTuple):
    """A beam one token later: the index of the tip that it comes from, of the candidate there, and that token."""

    parent: int
    candidate: int
    token_id: int
    cumulative_logprob: float


class Ending(NamedTuple):
    """A child that is finished, for one of two reasons, and its score."""

    child: Child
    score: float
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished output."""

    score: float
    cumulative_logprob: float
    token_ids: tuple[int, ...]
    reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """What a round comes to: the next beams, the best first, and those that are finished; all of them if it is over."""

    children: tuple[Child, ...]
    endings: tuple[Ending, ...]


@dataclass(slots=True)
class BeamSearch:
    """One search. `finished` are the best hypotheses, the best first; `num_tokens` has each beam after so many rounds.

    Written by `rank` and `keep`, which are called in turn.
    """

    params: BeamSearchParams
    max_output_tokens: int
    stop_token_ids: frozenset[int]
    finished: list[Hypothesis] = field(default_factory=list)
    num_tokens: int = 0
    is_over: bool = False

    @property
    def num_candidates(self) -> int:
        """How many of its likeliest tokens a beam has to offer: so many that `width` of them do not end the output."""
        return self.params.width + len(self.stop_token_ids)

    def rank(self, tips: abc.Sequence[Tip]) -> Round:
        """A round is over: all beams have a token more. Candidates of equal score come in the order of their tips."""
        self.num_tokens += 1
        width, is_last = self.params.width, self.num_tokens >= self.max_output_tokens
        children = [
            Child(parent, nth, token_id, tip.cumulative_logprob + logprob)
            for parent, tip in enumerate(tips)
            for nth, (token_id, logprob) in enumerate(tip.candidates)
        ]
        children.sort(key=lambda child: -child.cumulative_logprob)
        endings = [
            self._ending(child) for child in children[:width] if is_last or child.token_id in self.stop_token_ids
        ]
        going_on = [] if is_last else [child for child in children if child.token_id not in self.stop_token_ids]
        return Round(tuple(going_on[:width]), tuple(endings))

    def keep(self, round_: Round, hypotheses: abc.Iterable[Hypothesis]) -> None:
        """The endings of the round are `hypotheses`: the best of all are kept, and it is known whether that was all."""
        width = self.params.width
        self.finished += hypotheses
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)  # of equal ones the older comes first
        del self.finished[width:]
        if not round_.children:
            self.is_over = True
        elif len(self.finished) == width:
            best = self._score(round_.children[0].cumulative_logprob)
            self.is_over = self.params.early_stopping or best <= self.finished[-1].score

    def _ending(self, child: Child) -> Ending:
        is_stop = child.token_id in self.stop_token_ids
        reason = FinishReason.STOP if is_stop else FinishReason.LENGTH
        return Ending(child, self._score(child.cumulative_logprob), reason)

    def _score(self, cumulative_logprob: float) -> float:
        """Of a beam of `num_tokens` tokens."""
        return float(cumulative_logprob / self.num_tokens**self.params.length_penalty)
