"""What the scheduler refuses.

SchedulerError
├── DuplicateRequestError     the generation id is already known
├── RequestTooLargeError      the request can never fit the context or the pool
├── StaleOutputError          an output that does not answer the open plan: a bug of the caller
├── PolicyTakeoverError       a policy failed when it was to take over: the old one stays
└── InvariantError            the state contradicts itself: a bug of the scheduler
"""


class SchedulerError(Exception):
    """Base of every error that the scheduler raises."""


class DuplicateRequestError(SchedulerError):
    """A request with this generation id is queued or running."""

    def __init__(self, generation_id: str) -> None:
        super().__init__(f"generation {generation_id} is already known")
        self.generation_id = generation_id


class RequestTooLargeError(SchedulerError):
    """The prompt and the output together can never be held, however empty the engine is. `num_beams` above 1: those of
    so many beams, whole blocks counted."""

    def __init__(self, num_tokens: int, max_tokens: int, num_beams: int = 1) -> None:
        beams = f" in its {num_beams} beams" if num_beams > 1 else ""
        super().__init__(
            f"the request needs room for {num_tokens} tokens{beams}, a single request can hold {max_tokens}"
        )
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens
        self.num_beams = num_beams


class StaleOutputError(SchedulerError):
    """`commit` got an output of another step than the open plan's, or without a result for each row that samples."""


class InvariantError(SchedulerError):
    """`invariants.check` found a contradiction; the message says which."""


class PolicyTakeoverError(SchedulerError):
    """A policy failed while it took over from another; the message names it and says how."""
