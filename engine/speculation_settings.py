"""The settings of speculative decoding: a part of `EngineSettings`. Pure; `resolve` turns them into the scheduler's."""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings

from engine.core.config import DEFAULT_MAX_DRAFTING_SEQS, DEFAULT_MIN_DRAFT_ACCEPTANCE, MAX_DRAFT_TOKENS
from engine.errors import SettingsError

# A looked-up draft costs nothing to propose, and where one is right many are; a model's draft takes a pass each.
DEFAULT_NGRAM_DRAFTS = 8
DEFAULT_MODEL_DRAFTS = 4
SHORTEST_NGRAM = 3


class SpeculationSettings(BaseSettings):
    """Drafts never change an output, so nothing here does."""

    speculation: Literal["off", "ngram", "draft"] = Field(
        default="off",
        description="Who guesses at the next tokens, so that several are verified in one step: nobody, the text itself,"
        " or a smaller model.",
    )
    draft_model: Path | None = Field(
        default=None,
        description="With speculation draft: a GGUF file or a Hugging Face folder with the vocabulary of the model.",
    )
    num_draft_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_DRAFT_TOKENS,
        description="Most tokens that are guessed for one sequence and step. Unset: 8 for ngram, 4 for draft.",
    )
    ngram_min_tokens: int = Field(
        default=SHORTEST_NGRAM,
        ge=1,
        description="With speculation ngram: how many of the last tokens must have stood before in the sequence.",
    )
    max_drafting_seqs: int = Field(
        default=DEFAULT_MAX_DRAFTING_SEQS, ge=0, description="Steps that hold more sequences verify no guesses."
    )
    min_draft_acceptance: float = Field(
        default=DEFAULT_MIN_DRAFT_ACCEPTANCE,
        ge=0,
        le=1,
        description="No guess is verified that is right with a smaller probability, by those of late.",
    )

    @property
    def drafts_per_step(self) -> int:
        """Most draft tokens of one sequence and step; 0 is no speculation."""
        if self.speculation == "off":
            return 0
        usual = DEFAULT_NGRAM_DRAFTS if self.speculation == "ngram" else DEFAULT_MODEL_DRAFTS
        return usual if self.num_draft_tokens is None else self.num_draft_tokens


def check_speculation(settings: SpeculationSettings) -> None:
    """Raises SettingsError where two settings contradict each other."""
    if settings.speculation == "draft" and settings.draft_model is None:
        raise SettingsError("draft_model", "is required with speculation draft")
    if settings.speculation != "draft" and settings.draft_model is not None:
        raise SettingsError("draft_model", f"contradicts speculation {settings.speculation}: it needs draft")
