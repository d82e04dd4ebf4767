"""The order inside one flow: what ran before comes first, then the highest response ratio.

The ratio of a request is 1 + (tokens that its flow was served since it arrived) / (tokens that it is expected to
take): short ones go first, and a long one is passed only by those whose ratio is above its own, so its wait is finite.
Its size is its prompt and the mean output of the flow's latest requests. Requests are kept by size, a power of two
each, which stands for all of them, first come first served within a size, so the best is among a handful.
Under overload ratios alone would let a long request wait for ever, so every fourth admission is the oldest's: with n
older ones before it, a request comes in with the 4(n + 1)-th admission of its flow at the latest.
Source: highest response ratio next (Brinch Hansen 1971), ageing counted in tokens so that it needs no clock.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from engine.core.arrival_order import has_run
from engine.core.policy import SequenceView
from engine.core.ranking import Ranking

LATEST_SHARE = 0.1  # of the newest output in the mean: the last ten or so count
OLDEST_EVERY = 4  # admissions
FIRST_OUTPUT = 128.0  # tokens, before anybody has ended


class Arrival(NamedTuple):
    """What a flow had been served when a request came, and the size of the request as a power of two."""

    num_served: int
    size: int


@dataclass(slots=True, eq=False)
class Queue:
    """Written by Tree. `num_served` are the tokens that the flow was served."""

    started: Ranking[SequenceView] = field(default_factory=Ranking)
    by_size: dict[int, Ranking[SequenceView]] = field(default_factory=dict)
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    num_served: int = 0
    mean_output: float = FIRST_OUTPUT
    num_admitted: int = 0

    def __len__(self) -> int:
        return len(self.started) + sum(map(len, self.by_size.values()))

    def put(self, seq: SequenceView) -> None:
        """`seq` waits."""
        size = self._arrival(seq).size
        if has_run(seq):
            self.started.put(seq, (seq.arrival_index,))
        else:
            self.by_size.setdefault(size, Ranking()).put(seq, (seq.arrival_index,))

    def discard(self, seq: SequenceView, *, is_admitted: bool = False) -> bool:
        """`seq` waits no longer; False if it did not. An admission counts, until nobody waits any more."""
        if seq in self.started:
            self.started.discard(seq)
            return True
        arrival = self.arrivals.get(seq.arrival_index)
        ranking = None if arrival is None else self.by_size.get(arrival.size)
        if arrival is None or ranking is None or seq not in ranking:
            return False
        ranking.discard(seq)
        if not ranking:
            del self.by_size[arrival.size]
        self.num_admitted = self.num_admitted + is_admitted if self.by_size else 0
        return True

    def forget(self, seq: SequenceView) -> None:
        """`seq` has ended."""
        self.arrivals.pop(seq.arrival_index, None)
        if seq.num_output_tokens:
            self.mean_output += LATEST_SHARE * (seq.num_output_tokens - self.mean_output)

    def head(self) -> SequenceView | None:
        """The sequence that comes in next."""
        started = self.started.first()
        if started is not None:
            return started
        best, best_rank = None, (0.0, 0)
        for size, ranking in self.by_size.items():
            seq = ranking.first()
            if seq is not None:
                num_served = self.num_served - self.arrivals[seq.arrival_index].num_served
                rank = (self._ratio_rank(num_served, size), seq.arrival_index)
                if best is None or rank < best_rank:
                    best, best_rank = seq, rank
        return best

    def key(self, seq: SequenceView) -> tuple[float, float]:
        """Rank of any unfinished sequence in its flow, lower first."""
        if has_run(seq):
            return (0.0, 0.0)
        arrival = self._arrival(seq)
        return (1.0, self._ratio_rank(self.num_served - arrival.num_served, arrival.size))

    def _arrival(self, seq: SequenceView) -> Arrival:
        arrival = self.arrivals.get(seq.arrival_index)
        if arrival is None:
            num_uncached = seq.num_prompt_tokens - seq.num_cached_prompt_tokens
            size = int(num_uncached + self.mean_output).bit_length()
            arrival = self.arrivals[seq.arrival_index] = Arrival(self.num_served, size)
        return arrival

    def _ratio_rank(self, num_served: int, size: int) -> float:
        """The response ratio, the highest one first; the same for all where it is the oldest's turn."""
        is_oldest_due = self.num_admitted % OLDEST_EVERY == OLDEST_EVERY - 1
        return 0.0 if is_oldest_due else -1.0 - num_served / (1 << size)
