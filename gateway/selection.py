"""Which of a gateway's generations somebody means."""

from collections import abc
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Selection:
    """Those with these ids, those of the key, or those of the team."""

    generation_ids: frozenset[str] = frozenset()
    key_id: UUID | None = None
    team_id: UUID | None = None

    def has(self, generation_id: str, key_id: UUID, team_id: UUID | None) -> bool:
        """Whether a generation of that key and team is meant."""
        return (
            generation_id in self.generation_ids
            or (self.key_id is not None and key_id == self.key_id)
            or (self.team_id is not None and team_id == self.team_id)
        )


Select = abc.Callable[[Selection], list[str]]
"""The ids of those that run."""
