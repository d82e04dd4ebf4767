"""Prompts for the requests of a decision log, which has none: what is equal there is equal here.

Two things stand for a prompt. Its *tokens* give full blocks their names: each is 0, but for the last one of a full
block, which tells it apart, as outputs have it, too. Its *texts* are compared where two prompts part within a block:
they have as many tokens in common as the log says.
"""

from collections import abc

from engine.decision_log import Json

TOKEN = 0
STOP_TOKEN = 1
FIRST_BLOCK_TOKEN = 2

Common = tuple[int, int, int]


class MadePrompts:
    """The blocks of one log's prompts so far, by their numbers."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._texts: dict[int, tuple[int, ...]] = {}

    def make(self, line: Json) -> tuple[abc.Sequence[int], abc.Sequence[int]]:
        """Tokens and text of a request. Raises ValueError where its numbers do not fit it, KeyError if unknown."""
        num_tokens, numbers, end = line["prompt"], list(line.get("blocks", ())), line.get("end")
        if not numbers and end is None:
            return (range(num_tokens),) * 2  # nobody looks at them, so nobody lists them
        if num_tokens // self._size != len(numbers):  # else a short line could ask for any amount of memory
            raise ValueError(f"a prompt of {num_tokens} tokens has no {len(numbers)} full blocks of {self._size}")
        token_ids = [TOKEN] * num_tokens
        for index, number in zip(range(self._size - 1, num_tokens, self._size), numbers, strict=True):
            token_ids[index] = FIRST_BLOCK_TOKEN + number
        if end is not None:
            numbers.append(end)
        common = {index: (num_common, like, differs) for index, num_common, like, differs in line.get("common", ())}
        text: list[int] = []
        for index, number in enumerate(numbers):
            text += self._text(number, min(self._size, num_tokens - index * self._size), common.get(index))
        return tuple(token_ids), tuple(text)

    def _text(self, number: int, num_tokens: int, common: Common | None) -> tuple[int, ...]:
        if common is None and number in self._texts:
            return self._texts[number]
        num_common, like, differs = common or (0, 0, 0)
        begin = self._texts[like][:num_common] if num_common else ()
        if len(begin) != num_common or not num_common <= num_tokens:
            raise ValueError(f"block {number} has no {num_common} tokens in common with block {like}")
        text = [*begin, *[TOKEN] * (num_tokens - num_common)]
        if differs and num_common < num_tokens:
            text[num_common] = FIRST_BLOCK_TOKEN + number
        made = self._texts[number] = tuple(text)
        return made
