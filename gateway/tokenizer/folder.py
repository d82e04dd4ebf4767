"""A model's tokenizer as the files that Hugging Face `transformers` reads, for tools that count tokens on their side.

What `AutoTokenizer` makes of a text or a chat there are the ids that the gateway makes of it here.
"""

import json

from tokenizers import Tokenizer as Backend
from tokenizers import processors

from gateway.tokenizer.special_tokens import SpecialTokens
from gateway.tokenizer.tokenizer import load_backend, special_texts

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
# Any text that a tokenizer does not leave out.
PROBE = "a"


def tokenizer_files(
    tokenizer_json: bytes, chat_template: str, special: SpecialTokens, context_tokens: int
) -> dict[str, str]:
    """Their texts by their names. Raises UnusableTokenizerError."""
    backend = load_backend(tokenizer_json)
    texts = special_texts(backend, special)
    _begin_texts(backend, texts["bos_token"] if special.add_bos_token and "bos_token" in texts else None)
    config: dict[str, object] = {
        # Of all models: what is particular to one is in the other file.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
        **texts,
    }
    if chat_template:
        config["chat_template"] = chat_template
    return {
        TOKENIZER_FILE: backend.to_str(),
        CONFIG_FILE: json.dumps(config, ensure_ascii=False, indent=2) + "\n",
    }


def _begin_texts(backend: Backend, bos_token: str | None) -> None:
    """A text begins with `bos_token`, or with nothing, and ends with nothing, as where prompts are billed."""
    bare = backend.encode(PROBE, add_special_tokens=False).ids
    if bos_token is None:
        if backend.encode(PROBE).ids != bare:
            backend.post_processor = processors.Sequence([])
        return
    bos_id = backend.token_to_id(bos_token)
    if backend.encode(PROBE).ids != [bos_id, *bare]:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos_token} $A", pair=f"{bos_token} $A $B", special_tokens=[(bos_token, bos_id)]
        )
