import json

import pytest

from engine.model.errors import ModelFileError, UnsupportedModelError
from engine.model.tokenizer_folder import tokenizer_from_folder
from tests.model import tiny_llama


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "tokenizer.json", tiny_llama.tokenizer_document())
    return tmp_path


def write(path, document):
    path.write_text(json.dumps(document))


def test_tokenizer_is_handed_on_byte_for_byte(folder):
    assert tokenizer_from_folder(folder).tokenizer_json == (folder / "tokenizer.json").read_bytes()


def test_special_tokens_come_from_the_tokenizers_settings_before_the_models(folder):
    write(folder / "tokenizer_config.json", {"bos_token": {"content": "<s>"}, "pad_token": "</s>"})
    write(folder / "config.json", {"bos_token_id": 7, "eos_token_id": 9})
    info = tokenizer_from_folder(folder)
    assert (info.bos_token_id, info.pad_token_id, info.unk_token_id) == (0, 1, None)
    assert info.eos_token_ids == (9,)


def test_every_declared_end_token_ends_a_generation_the_models_own_first(folder):
    write(folder / "tokenizer_config.json", {"eos_token": "</s>"})
    write(folder / "generation_config.json", {"eos_token_id": [5, 1, 6]})
    assert tokenizer_from_folder(folder).eos_token_ids == (1, 5, 6)


def test_template_file_wins_over_the_setting(folder):
    write(folder / "tokenizer_config.json", {"chat_template": "setting"})
    assert tokenizer_from_folder(folder).chat_template == "setting"
    (folder / "chat_template.jinja").write_text("{{ 'ß' }}", encoding="utf-8")
    assert tokenizer_from_folder(folder).chat_template == "{{ 'ß' }}"


def test_default_is_picked_among_named_templates(folder):
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    write(folder / "tokenizer_config.json", {"chat_template": named})
    assert tokenizer_from_folder(folder).chat_template == "plain"


def test_bos_is_added_where_the_setting_or_the_tokenizers_template_says_so(folder):
    write(folder / "tokenizer_config.json", {"bos_token": "<s>"})
    assert not tokenizer_from_folder(folder).add_bos_token
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]}
    steps = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}
    for processor in (template, steps):
        write(folder / "tokenizer.json", tiny_llama.tokenizer_document() | {"post_processor": processor})
        assert tokenizer_from_folder(folder).add_bos_token
    write(folder / "tokenizer_config.json", {"bos_token": "<s>", "add_bos_token": False})
    assert not tokenizer_from_folder(folder).add_bos_token


def test_folder_with_sentencepieces_own_file_only_is_named(folder):
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json: is missing, and tokenizer\.model is not read"):
        tokenizer_from_folder(folder)


@pytest.mark.parametrize("document", [{}, {"model": {"vocab": [["a"]]}}, {"model": []}])
def test_tokenizer_without_vocabulary_is_named(folder, document):
    write(folder / "tokenizer.json", document)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: has no vocabulary"):
        tokenizer_from_folder(folder)
