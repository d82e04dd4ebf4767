"""What stays of a generation for its callers: who it belongs to, what it has said, how it ended.

Holds no prompt: what is kept for a minute after the end is the output and the figures.
"""

from dataclasses import dataclass
from uuid import UUID

from gateway.servicer.journal import Journal
from gateway.servicer.outcome import Outcome, Queued
from gateway.tokenizer import Tokenizer


@dataclass(slots=True, eq=False)
class Transcript:
    """Written by the generation, read by every call that shows it. `outcome` is None while it runs.

    request_id           the client's, or empty; `fingerprint` tells two requests under it apart
    survives_disconnect  whether it goes on when its last reader is cut off
    is_scheduled         whether a step has taken it
    is_paused            whether it gets no tokens for now
    queued               its last known place in the queue
    """

    generation_id: str
    team_id: UUID
    key_id: UUID
    request_id: str
    fingerprint: bytes
    model: str
    priority_class: str
    tokenizer: Tokenizer
    shows_token_ids: bool
    num_input_tokens: int
    num_reserved_tokens: int
    survives_disconnect: bool
    journal: Journal
    is_scheduled: bool = False
    is_paused: bool = False
    queued: Queued | None = None
    outcome: Outcome | None = None

    def has_told_end(self, after_sequence: int) -> bool:
        """Whether who has that message has everything: it was the last one."""
        journal = self.journal
        return self.outcome is not None and not journal.has_unread and after_sequence == journal.last_sequence + 1
