"""Log-probabilities of a prompt's tokens, beside the tokens that they are of. Pure."""

from collections import abc
from typing import NamedTuple

from gateway.engine_client import TokenLogprobs


class ScoredToken(NamedTuple):
    """A token of the prompt; `logprobs` is None of the first one, which nothing was before."""

    token_id: int
    logprobs: TokenLogprobs | None


class PromptScores:
    """Says which token the engine's next log-probabilities are of. An empty prompt: nobody wants them."""

    def __init__(self, prompt_token_ids: abc.Sequence[int]) -> None:
        self._token_ids = prompt_token_ids
        self._num_taken = 0

    def first(self) -> tuple[ScoredToken, ...]:
        """The token that comes before all that are told of; nothing where nobody wants any."""
        self._num_taken = 1
        return tuple(ScoredToken(token_id, None) for token_id in self._token_ids[:1])

    def take(self, entries: abc.Sequence[TokenLogprobs]) -> tuple[ScoredToken, ...]:
        """The next tokens, with `entries`."""
        begin = self._num_taken
        self._num_taken += len(entries)
        return tuple(map(ScoredToken, self._token_ids[begin : self._num_taken], entries))
