"""Short prompts first, but each token of a prompt is worth a bounded wait, so that long ones get their turn."""

from engine.core.policy import Concession, Terms
from engine.core.ranking import Ranking


class ShortestPrompt:
    """ms_per_token  of waiting by which a prompt of one more token comes later, at least 0"""

    def __init__(self, *, ms_per_token: float = 10.0):
        if not ms_per_token >= 0:
            raise ValueError(f"ms_per_token must be at least 0, not {ms_per_token}")
        self.ns_per_token = round(ms_per_token * 1_000_000)
        self.waiting = Ranking()

    def on_arrive(self, seq, now):
        self.waiting.put(seq, (*self.key(seq), seq.arrival_index))

    def on_leave(self, seq, reason, now):
        self.waiting.discard(seq)

    def begin(self, start):
        return Terms()

    def select(self, passed):
        return None if passed else self.waiting.first()

    def key(self, seq):
        return (seq.arrived_at + self.ns_per_token * seq.num_prompt_tokens,)

    def concede(self, victim, claimant):
        return Concession.NOTHING

    def charge(self, service):
        pass

    def standing(self, flow):
        return ()

    def snapshot(self):
        return b"shortest_prompt"

    def restore(self, snapshot):
        if snapshot != b"shortest_prompt":
            raise ValueError("this is not a snapshot of shortest_prompt")


class LongestOutput:
    """Whoever has been given most tokens gives way first."""

    def victims(self, resident, claimant, standing, now):
        return iter(sorted(resident, key=lambda seq: (-seq.num_output_tokens, -seq.arrival_index)))
