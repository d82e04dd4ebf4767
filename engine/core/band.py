"""The resident sequences that a plan serves together: one class, or all of them, split by who yields.

Knows no order within a band beyond arrival.
"""

from dataclasses import dataclass, field

from engine.core.lifecycle import Lifecycle
from engine.core.policy import Terms
from engine.core.sequence import Sequence


@dataclass(slots=True)
class Part:
    """Sequences that decode and run, that decode and are paused, and that have more than one token to compute."""

    decodes: list[Sequence] = field(default_factory=list)
    paused_decodes: list[Sequence] = field(default_factory=list)
    prompts: list[Sequence] = field(default_factory=list)


@dataclass(slots=True)
class Band:
    """What is served in one pass. `class_name` None is every class.

    `is_yielding` tells pass B; `rest` are the sequences of pass B while this is pass A.
    """

    class_name: str | None
    terms: Terms
    is_yielding: bool
    part: Part
    rest: Part

    @property
    def decodes(self) -> list[Sequence]:
        return self.part.decodes

    @property
    def paused_decodes(self) -> list[Sequence]:
        return self.part.paused_decodes

    @property
    def prompts(self) -> list[Sequence]:
        return self.part.prompts

    @property
    def has_yielding(self) -> bool:
        return bool(self.terms.yielding)

    def yielding(self) -> "Band":
        """Pass B of this band."""
        return Band(self.class_name, self.terms, is_yielding=True, part=self.rest, rest=Part())

    def serves(self, seq: Sequence) -> bool:
        """True if `seq`, a head, belongs to this pass."""
        is_of_class = self.class_name is None or seq.flow.priority_class.name == self.class_name
        return is_of_class and (seq.flow in self.terms.yielding) is self.is_yielding


def bands(lifecycle: Lifecycle, terms: Terms) -> list[Band]:
    """In the order in which they are served."""
    names = _class_names(lifecycle, terms)
    result = {name: Band(name, terms, is_yielding=False, part=Part(), rest=Part()) for name in names or [None]}
    only = result.get(None)
    yielding = terms.yielding
    if only is not None and not yielding:
        only.part = _part(lifecycle)
        return [only]
    for seqs, is_paused in ((lifecycle.running, False), (lifecycle.paused, True)):
        for seq in seqs:
            band = only or result[seq.flow.priority_class.name]
            part = band.rest if seq.flow in yielding else band.part
            if seq.num_tokens - seq.num_computed_tokens > 1:
                part.prompts.append(seq)
            else:
                (part.paused_decodes if is_paused else part.decodes).append(seq)
    return list(result.values())


def _part(lifecycle: Lifecycle) -> Part:
    """All residents."""
    decodes = [seq for seq in lifecycle.running if seq.num_tokens - seq.num_computed_tokens <= 1]
    paused_decodes = [seq for seq in lifecycle.paused if seq.num_tokens - seq.num_computed_tokens <= 1]
    if len(decodes) + len(paused_decodes) == len(lifecycle.running) + len(lifecycle.paused):
        return Part(decodes, paused_decodes)
    residents = (*lifecycle.running, *lifecycle.paused)
    return Part(decodes, paused_decodes, [seq for seq in residents if seq.num_tokens - seq.num_computed_tokens > 1])


def _class_names(lifecycle: Lifecycle, terms: Terms) -> list[str | None] | None:
    """None if classes mean nothing in this plan, or there is one only."""
    if terms.class_order is None:
        return None
    known = lifecycle.flows.class_ranks()
    if len(known) < 2:
        return None
    named = [name for name in terms.class_order if name in known]
    others = sorted((rank, name) for name, rank in known.items() if name not in named)
    return [*named, *(name for _, name in others)]
