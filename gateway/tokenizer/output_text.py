"""The text of one output while it is generated: detokenized, hidden tokens left out, cut before the first stop string.

Knows neither the wire nor billing; tells how many tokens it took, because output is billed up to the token that
completes a stop string.
"""

from collections import abc
from dataclasses import dataclass

from gateway.tokenizer.stop_strings import StopStringFinder
from gateway.tokenizer.text_decoder import TextDecoder
from gateway.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What a chunk of tokens added to the text.

    `num_tokens` of the chunk belong to the output, hidden ones included: all of it unless `stopped`, then up to and
    with the token that completed the stop string. What follows is to be discarded.
    """

    text: str
    num_tokens: int
    stopped: bool


class OutputText:
    """Turns chunks of token ids into text deltas that never hold half a character or any part of a stop string.

    The concatenated deltas and `finish()` are the same for every way of cutting the tokens into chunks: the decoding of
    all visible tokens at once, up to the stop string whose last character comes first (of several, the longest).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_strings: abc.Sequence[str] = (),
        hidden_token_ids: abc.Set[int] = frozenset(),
    ) -> None:
        """Raises ValueError if a stop string is empty."""
        self._decoder = TextDecoder(tokenizer.token_bytes, hidden_token_ids)
        self._finder = StopStringFinder(stop_strings) if stop_strings else None

    def push(self, token_ids: abc.Sequence[int]) -> TextDelta:
        """What these tokens add. After a stop string nothing is added, and no token counts."""
        if self._finder is None:
            return TextDelta(self._decoder.push(token_ids), len(token_ids), stopped=False)
        if self._finder.found:
            return TextDelta("", 0, stopped=True)
        decoder_state, held = self._decoder.state(), self._finder.held
        text = self._finder.push(self._decoder.push(token_ids))
        if not self._finder.found:
            return TextDelta(text, len(token_ids), stopped=False)
        self._decoder.restore(decoder_state)
        self._finder.resume(held)
        return TextDelta(text, self._num_tokens_to_stop(self._finder, token_ids), stopped=True)

    def finish(self) -> str:
        """The rest: what was held back as a possible stop string, and U+FFFD for a character left incomplete."""
        rest = self._decoder.finish()
        if self._finder is None:
            return rest
        return self._finder.push(rest) + self._finder.finish()

    def _num_tokens_to_stop(self, finder: StopStringFinder, token_ids: abc.Sequence[int]) -> int:
        for num_tokens, token_id in enumerate(token_ids, start=1):
            finder.push(self._decoder.push((token_id,)))
            if finder.found:
                return num_tokens
        raise AssertionError("a stop string that these tokens complete together is not completed one by one")
