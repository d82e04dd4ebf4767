"""Which token ids mean something to the model beyond their text, as the engine's model information tells them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The first of `eos_token_ids` is the model's own. `add_bos_token` concerns text prompts only."""

    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    unk_token_id: int | None = None
    add_bos_token: bool = False
