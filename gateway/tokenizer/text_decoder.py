"""Token ids to text as they arrive. Knows bytes and characters, nothing of stop strings.

A character appears when its last byte has come. Bytes that can no longer become one appear as U+FFFD, at the earliest
moment that this is certain. Each call costs what its own tokens cost, whatever came before.
"""

import codecs
from collections import abc
from dataclasses import dataclass

from gateway.tokenizer.token_bytes import TokenBytes

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class DecoderState:
    """Where a TextDecoder stands: at most three pending bytes, and whether the text has begun."""

    pending: bytes
    is_first: bool
    num_leading_spaces: int


class TextDecoder:
    """Decodes one output. The concatenated results equal the decoding of all tokens that are not hidden, at once."""

    def __init__(self, token_bytes: TokenBytes, hidden_token_ids: abc.Set[int]) -> None:
        self._token_bytes = token_bytes
        self._hidden = frozenset(hidden_token_ids)
        self._utf8 = _new_utf8_decoder("replace")
        self._is_first = token_bytes.first_by_id is not None
        self._num_leading_spaces = token_bytes.num_leading_spaces

    def push(self, token_ids: abc.Sequence[int]) -> str:
        """The characters that these tokens complete. Ids beyond the vocabulary have no text."""
        by_id, hidden = self._token_bytes.by_id, self._hidden
        # Models pad their vocabulary, so they can sample an id that no token has.
        visible = [token_id for token_id in token_ids if token_id not in hidden and token_id < len(by_id)]
        data = b"".join([by_id[token_id] for token_id in visible])
        if self._is_first and visible:
            data = self._first_bytes(visible)
        return self._trim(self._utf8.decode(data))

    def finish(self) -> str:
        """U+FFFD if a character was left incomplete, else nothing."""
        return self._trim(self._utf8.decode(b"", True))  # noqa: FBT003 -- the codec's `final`, positional only in C

    def state(self) -> DecoderState:
        """Where the decoder stands, for `restore`."""
        return DecoderState(self._utf8.getstate()[0], self._is_first, self._num_leading_spaces)

    def restore(self, state: DecoderState) -> None:
        """Go back to `state`: what was pushed since is forgotten."""
        self._utf8.setstate((state.pending, 0))
        self._is_first = state.is_first
        self._num_leading_spaces = state.num_leading_spaces

    def _first_bytes(self, visible: abc.Sequence[int]) -> bytes:
        first_by_id, by_id = self._token_bytes.first_by_id, self._token_bytes.by_id
        assert first_by_id is not None
        self._is_first = False
        return first_by_id[visible[0]] + b"".join([by_id[token_id] for token_id in visible[1:]])

    def _trim(self, text: str) -> str:
        while self._num_leading_spaces and text:
            if not text.startswith(" "):
                self._num_leading_spaces = 0
                break
            text = text[1:]
            self._num_leading_spaces -= 1
        return text
