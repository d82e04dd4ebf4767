"""The messages of a generation that has ended, in a tenth of the memory: kept by the thousand for a minute each."""

from array import array
from collections import abc

from gateway.servicer.outcome import Delta, Event


class PackedEvents(abc.Sequence[Event]):
    """Equal to the events that it was made of. Deltas of text alone are pieces of one string."""

    def __init__(self, events: abc.Sequence[Event]) -> None:
        texts: list[str] = []
        ends, counts = array("L", [0]), array("L", [0])
        self._others: dict[int, Event] = {}
        for index, event in enumerate(events):
            counts.append(event.num_output_tokens if isinstance(event, Delta) else counts[-1])
            if isinstance(event, Delta) and _is_plain(event, counts[-1] - counts[-2]):
                texts.append(event.text)
                ends.append(ends[-1] + len(event.text))
            else:
                self._others[index] = event
                ends.append(ends[-1])
        self._text = "".join(texts)
        self._ends, self._counts = ends, counts

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Event:  # type: ignore[override]  # nobody slices it
        event = self._others.get(index)
        if event is not None:
            return event
        start, end = self._ends[index], self._ends[index + 1]
        before, count = self._counts[index], self._counts[index + 1]
        return Delta(self._text[start:end], (), (), count - before, count)


def _is_plain(delta: Delta, num_tokens: int) -> bool:
    return not (delta.token_ids or delta.logprobs or delta.prompt or delta.found) and delta.num_tokens == num_tokens
