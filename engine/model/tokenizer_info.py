"""What a model file says about text, as the gateway gets it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """tokenizer_json   the Hugging Face `tokenizers` form, UTF-8
    chat_template    Jinja2; empty if the model has none
    eos_token_ids    the first one is the model's own
    add_bos_token    whether a prompt starts with `bos_token_id`
    """

    tokenizer_json: bytes
    chat_template: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    unk_token_id: int | None
    add_bos_token: bool
