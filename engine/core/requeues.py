"""Steps that came to nothing because the device had no memory left for them.

The sequences of such a step wait and are computed again from their first token, like those that a preemption took all
blocks from: what the runner knew of their rows is not to be relied on. That is so once: a sequence that has not got
beyond where the last such step found it ends with an error, so that nothing is tried for ever.
"""

from engine.core.lifecycle import Lifecycle
from engine.core.preemption import Preemptions
from engine.core.sequence import Sequence
from engine.core.step import Step
from engine.core.types import FinishReason, Nanos, PauseReason, SequenceStatus

NO_MEMORY = "the engine had no memory left for the request, twice in a row"


class Requeues:
    """Which sequences were requeued, and how many of their tokens were computed then.

    num_lost_steps  steps that came to nothing
    num_requeues    how often a request was sent back by one
    """

    def __init__(self, lifecycle: Lifecycle, preemptions: Preemptions) -> None:
        self._lifecycle = lifecycle
        self._preemptions = preemptions
        self._num_computed: dict[Sequence, int] = {}
        self.num_lost_steps = self.num_requeues = 0

    def take_back(self, step: Step, now: Nanos) -> None:
        """The sequences of `step`, whose plan is not open any more, have got nothing by it: nobody is charged.

        Each waits, or has ended. Copies that the plan began go on.
        """
        step.forget_planned()
        self.num_lost_steps += 1
        finished = SequenceStatus.FINISHED
        self._num_computed = {seq: num for seq, num in self._num_computed.items() if seq.status is not finished}
        for seq in step.granted:
            if seq.status is finished:  # before, or with another beam of its request
                continue
            seq.forget_scheduled()
            if seq.num_computed_tokens > self._num_computed.get(seq, -1):
                self._num_computed[seq] = seq.num_computed_tokens
                self._preemptions.recompute(seq, PauseReason.KV_PRESSURE, now)
            else:
                del self._num_computed[seq]
                self._lifecycle.finish(seq, FinishReason.ERROR, now, NO_MEMORY)
        self.num_requeues += len({seq.request.generation_id for seq in step.granted if seq.status is not finished})
        self._lifecycle.release_ended()
