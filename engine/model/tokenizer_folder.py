"""Reads the tokenizer of a Hugging Face folder: `tokenizer.json` as it is, the rest from the files beside it."""

from collections import abc
from pathlib import Path
from typing import Any

from engine.model.errors import ModelFileError, UnsupportedModelError
from engine.model.safetensors_weights import CONFIG_FILE, read_json
from engine.model.tokenizer_info import TokenizerInfo

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
GENERATION_FILE = "generation_config.json"
TEMPLATE_FILE = "chat_template.jinja"
SENTENCE_PIECE_FILE = "tokenizer.model"

_Json = dict[str, Any]  # Any: JSON


def tokenizer_from_folder(folder: Path) -> TokenizerInfo:
    """The tokenizer in `folder`. Raises ModelFileError, naming the file, where one is missing or makes no sense."""
    path = folder / TOKENIZER_FILE
    if not path.exists() and (folder / SENTENCE_PIECE_FILE).exists():
        raise UnsupportedModelError(path, f"is missing, and {SENTENCE_PIECE_FILE} is not read in its place")
    tokenizer = read_json(path)
    settings = _optional_json(folder / SETTINGS_FILE)
    config = _optional_json(folder / CONFIG_FILE)
    generation = _optional_json(folder / GENERATION_FILE)
    id_by_token = _id_by_token(path, tokenizer)
    ids = {name: _token_id(name, settings, id_by_token, config) for name in ("bos", "eos", "pad", "unk")}
    return TokenizerInfo(
        tokenizer_json=path.read_bytes(),
        chat_template=_chat_template(folder, settings),
        bos_token_id=ids["bos"],
        eos_token_ids=_end_token_ids(ids["eos"], generation, config),
        pad_token_id=ids["pad"],
        unk_token_id=ids["unk"],
        add_bos_token=_adds_bos(tokenizer, settings, id_by_token, ids["bos"]),
    )


def tokenizer_files(folder: Path) -> list[Path]:
    """What `tokenizer_from_folder` reads there, the model's own configuration aside."""
    optional = (folder / name for name in (SETTINGS_FILE, GENERATION_FILE, TEMPLATE_FILE))
    return [folder / TOKENIZER_FILE, *(path for path in optional if path.exists())]


def _optional_json(path: Path) -> _Json:
    return read_json(path) if path.exists() else {}


def _id_by_token(path: Path, tokenizer: _Json) -> abc.Mapping[str, int]:
    try:
        vocabulary = dict(tokenizer["model"]["vocab"])
        added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
    except (KeyError, TypeError, ValueError) as err:
        raise ModelFileError(path, "has no vocabulary that maps tokens to ids") from err
    return vocabulary | added


def _token_id(name: str, settings: _Json, id_by_token: abc.Mapping[str, int], config: _Json) -> int | None:
    token = settings.get(f"{name}_token")
    content = token.get("content") if isinstance(token, dict) else token
    if isinstance(content, str) and content in id_by_token:
        return id_by_token[content]
    token_id = config.get(f"{name}_token_id")
    return token_id if isinstance(token_id, int) else None


def _end_token_ids(own: int | None, generation: _Json, config: _Json) -> tuple[int, ...]:
    """`own` first, then whatever else ends a generation; either key holds one id or a list of them."""
    declared = generation.get("eos_token_id", config.get("eos_token_id"))
    listed = declared if isinstance(declared, list) else [declared]
    return tuple(dict.fromkeys(token_id for token_id in (own, *listed) if isinstance(token_id, int)))


def _chat_template(folder: Path, settings: _Json) -> str:
    """A file of its own wins over the setting, which is one template or a list of named ones."""
    path = folder / TEMPLATE_FILE
    if path.exists():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as err:
            raise ModelFileError(path, f"cannot be read ({err})") from err
    template = settings.get("chat_template", "")
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default", "")
    return template if isinstance(template, str) else ""


def _adds_bos(tokenizer: _Json, settings: _Json, id_by_token: abc.Mapping[str, int], bos_token_id: int | None) -> bool:
    """The setting if there is one; else whether the tokenizer's own template puts the token first."""
    declared = settings.get("add_bos_token")
    if isinstance(declared, bool):
        return declared and bos_token_id is not None
    processor = tokenizer.get("post_processor") or {}
    for step in processor.get("processors", [processor]):
        for piece in step.get("single", [])[:1]:
            token = piece.get("SpecialToken", {}).get("id")
            return bos_token_id is not None and id_by_token.get(token) == bos_token_id
    return False
