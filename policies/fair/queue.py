"""The order inside one flow: what ran before comes first, then the highest response ratio.

The ratio of a request is 1 + (tokens that its flow was served since it arrived) / (tokens of its prompt): short ones go
first, and a long one is passed only by those whose ratio is above its own, so its wait is finite. Prompts are kept by
size, a power of two each, which stands for their length, first come first served within a size, so that the best is
among a handful of candidates.
Source: highest response ratio next (Brinch Hansen 1971), ageing counted in tokens so that it needs no clock.
"""

from collections import abc
from dataclasses import dataclass, field

from engine.core.policy import SequenceView
from engine.core.ranking import Ranking
from policies.waiting import has_run


@dataclass(slots=True, eq=False)
class Queue:
    """Written by Tree. `num_served` are the tokens that the flow was served; `arrived` what it was when each came."""

    started: Ranking[SequenceView] = field(default_factory=Ranking)
    by_size: dict[int, Ranking[SequenceView]] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)
    num_served: int = 0

    def __len__(self) -> int:
        return len(self.started) + sum(map(len, self.by_size.values()))

    def put(self, seq: SequenceView) -> None:
        """`seq` waits."""
        self.arrived.setdefault(seq.arrival_index, self.num_served)
        if has_run(seq):
            self.started.put(seq, (seq.arrival_index,))
        else:
            size = seq.num_prompt_tokens.bit_length()
            self.by_size.setdefault(size, Ranking()).put(seq, (seq.arrival_index,))

    def discard(self, seq: SequenceView) -> bool:
        """`seq` waits no longer; False if it did not."""
        if seq in self.started:
            self.started.discard(seq)
            return True
        size = seq.num_prompt_tokens.bit_length()
        ranking = self.by_size.get(size)
        if ranking is None or seq not in ranking:
            return False
        ranking.discard(seq)
        if not ranking:
            del self.by_size[size]
        return True

    def forget(self, seq: SequenceView) -> None:
        """`seq` has ended."""
        self.arrived.pop(seq.arrival_index, None)

    def head(self) -> SequenceView | None:
        """The sequence that comes in next."""
        started = self.started.first()
        if started is not None:
            return started
        return min(self._candidates(), key=lambda seq: (self.key(seq), seq.arrival_index), default=None)

    def key(self, seq: SequenceView) -> tuple[float, float]:
        """Rank of any unfinished sequence in its flow, lower first; for a prompt that runs, by what it still lacks."""
        if has_run(seq):
            return (0.0, 0.0)
        waited = self.num_served - self.arrived.get(seq.arrival_index, self.num_served)
        return (1.0, -1.0 - waited / (1 << (seq.num_tokens - seq.num_computed_tokens).bit_length()))

    def _candidates(self) -> abc.Iterator[SequenceView]:
        for ranking in self.by_size.values():
            first = ranking.first()
            if first is not None:
                yield first
