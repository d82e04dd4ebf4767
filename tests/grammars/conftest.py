"""A compiler of grammars, for a vocabulary that everything can be written with."""

import pytest

from engine.grammars.compiler import GrammarCompiler, Vocabulary
from tests.gateway.fake_engine import END_TOKEN, VOCABULARY_SIZE, byte_tokenizer_json


@pytest.fixture
def grammars() -> GrammarCompiler:
    """Of a vocabulary with one token per byte."""
    return GrammarCompiler(Vocabulary(byte_tokenizer_json(), VOCABULARY_SIZE, (END_TOKEN,)))
