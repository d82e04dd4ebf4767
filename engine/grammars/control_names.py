"""Names of control tokens that no text spells, so that a grammar's text is never written with one of them.

The library brings text that an output has to go on with into tokens as the model's tokenizer does, and a tokenizer
takes text that reads like a control token for that token: it would end the output, or leave its grammar.
"""

import json
import secrets
from collections import abc
from typing import Any

NUM_SECRET_BYTES = 16


def without_control_names(tokenizer_json: bytes) -> str:
    """A tokenizer of the Hugging Face `tokenizers` form, in which nobody can guess what its control tokens are called.

    Their numbers stay as they are. Raises ValueError where it is not in that form.
    """
    document: dict[str, Any] = json.loads(tokenizer_json)
    secret = secrets.token_hex(NUM_SECRET_BYTES)
    names = {
        token["content"]: f"<|{secret} {token['id']}|>"
        for token in document.get("added_tokens") or ()
        if token.get("special")
    }
    document["added_tokens"] = [
        {**token, "content": names.get(token["content"], token["content"])}
        for token in document.get("added_tokens") or ()
    ]
    model = document.get("model") or {}
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = {names.get(text, text): number for text, number in model["vocab"].items()}
    elif isinstance(model.get("vocab"), abc.Sequence):  # of a unigram model: each with its score
        model["vocab"] = [[names.get(text, text), score] for text, score in model["vocab"]]
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    document["post_processor"] = None  # which adds them by name; a grammar's text gets none
    return json.dumps(document, ensure_ascii=False)
