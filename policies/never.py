"""Nobody gives way: a sequence without room waits until others end. For engines that admit whole requests only.

With an admission reserve of whole requests nothing ever asks for a victim; with a smaller one, sequences can come to
fill the pool between them, and the core then lets the latest give way to the first, whatever this policy says.
A scheduling policy that must be able to preempt is refused beside it.
"""

from collections import abc

from engine.core.policy import SequenceView, Standing
from engine.core.types import Nanos


class Never:
    """A veto, always."""

    preempts = False

    def victims(
        self, resident: abc.Sequence[SequenceView], claimant: SequenceView, standing: Standing, now: Nanos
    ) -> abc.Iterator[SequenceView]:
        return iter(())
