"""What a setting may be, and what becomes of those that are left open."""

import os
from types import SimpleNamespace

import pytest

from engine.core.config import AdmissionReserve, PreemptionChoice
from engine.errors import SettingsError
from engine.machine import DeviceMemory
from engine.settings import ENV_PREFIX, EngineSettings, policy_options, read_settings, resolve, resolve_num_threads

GIB = 1 << 30
MODEL = SimpleNamespace(context_tokens=8192, kv_bytes_per_token=23_040)
CPU = DeviceMemory("cpu", 4 * GIB)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in os.environ:
        if name.startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


def settings(**flags) -> EngineSettings:
    return read_settings({"listen": "unix:/tmp/engine.sock"} | flags)


def test_flag_wins_over_variable(monkeypatch):
    monkeypatch.setenv("EVENFLOW_ENGINE_MAX_NUM_SEQS", "7")
    assert settings().max_num_seqs == 7
    assert settings(max_num_seqs="9").max_num_seqs == 9


def test_flag_that_is_not_given_leaves_the_variable(monkeypatch):
    monkeypatch.setenv("EVENFLOW_ENGINE_ENABLE_CHUNKED_PREFILL", "false")
    assert settings(enable_chunked_prefill=None).enable_chunked_prefill is False


def test_policy_options_come_repeated_or_with_commas(monkeypatch):
    assert settings(scheduling_option=["a=1", "b=2"]).scheduling_option == ("a=1", "b=2")
    monkeypatch.setenv("EVENFLOW_ENGINE_SCHEDULING_OPTION", "a=1, b=2")
    assert settings().scheduling_option == ("a=1", "b=2")


def test_unknown_variable_is_named(monkeypatch):
    monkeypatch.setenv("EVENFLOW_ENGINE_MAX_NUM_SEQ", "7")
    with pytest.raises(SettingsError, match=r"^EVENFLOW_ENGINE_MAX_NUM_SEQ is no setting"):
        settings()


def test_variable_of_another_program_is_left_alone(monkeypatch):
    monkeypatch.setenv("EVENFLOW_ADDRESS", "127.0.0.1:1")
    assert settings().max_num_seqs == 64


@pytest.mark.parametrize(
    ("flags", "setting", "problem"),
    [
        ({"listen": None}, "listen", "is required"),
        ({"max_num_seqs": "0"}, "max_num_seqs", "greater than or equal to 1, not '0'"),
        ({"max_num_seqs": "many"}, "max_num_seqs", "not 'many'"),
        ({"dtype": "float16"}, "dtype", "not 'float16'"),
        ({"max_prefill_share": "nan"}, "max_prefill_share", "not 'nan'"),
        ({"grace_s": "-1"}, "grace_s", "not '-1'"),
        ({"num_device_blocks": "4", "kv_cache_bytes": "4096"}, "kv_cache_bytes", "contradicts num_device_blocks"),
        ({"num_host_blocks": "4", "host_cache_bytes": "4096"}, "host_cache_bytes", "contradicts num_host_blocks"),
        ({"num_host_blocks": "-1"}, "num_host_blocks", "not '-1'"),
        ({"preemption_mode": "drop"}, "preemption_mode", "not 'drop'"),
        ({"admission_reserve": "some"}, "admission_reserve", "not 'some'"),
        ({"link_share": "0"}, "link_share", "not '0'"),
        ({"target_step_ms": "inf"}, "target_step_ms", "not 'inf'"),
        ({"target_step_ms": "nan"}, "target_step_ms", "not 'nan'"),
    ],
)
def test_bad_value_is_refused_in_one_line_that_names_the_setting(flags, setting, problem):
    with pytest.raises(SettingsError) as caught:
        settings(**flags)
    assert caught.value.setting == setting
    assert str(caught.value).startswith(setting)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        settings().max_num_seqs = 1


@pytest.mark.parametrize("pairs", [["a"], ["=1"], ["a=1", "a=2"]])
def test_malformed_policy_option_is_refused_by_name(pairs):
    with pytest.raises(SettingsError, match=r"^scheduling_option"):
        policy_options("scheduling_option", pairs)


def test_policy_option_may_hold_an_equals_sign():
    assert policy_options("scheduling_option", ["a=b=c"]) == {"a": "b=c"}


@pytest.mark.parametrize(("num_cores", "num_threads"), [(1, 1), (2, 1), (3, 2), (8, 7)])
def test_a_core_is_left_to_the_gateway_where_there_is_another(num_cores, num_threads):
    assert resolve_num_threads(settings(), num_cores) == num_threads


def test_threads_that_are_asked_for_are_used():
    assert resolve_num_threads(settings(num_threads="5"), 2) == 5


def test_open_settings_become_values_that_fit_the_model():
    config = resolve(settings(), MODEL, CPU, CPU)
    assert config.max_model_len == 8192
    assert config.max_num_seqs == 64
    assert config.max_num_batched_tokens == 256
    assert config.block_size == 16
    # A quarter of 4 GiB, in blocks of 16 tokens.
    assert config.num_device_blocks == GIB // (16 * 23_040)


def test_pool_is_capped_where_memory_is_plenty():
    assert resolve(settings(), MODEL, *[DeviceMemory("cpu", 1024 * GIB)] * 2).num_device_blocks == 2 * GIB // (
        16 * 23_040
    )


def test_pool_is_no_larger_than_every_row_at_full_context():
    config = resolve(settings(max_num_seqs="2"), MODEL, CPU, CPU)
    assert config.num_device_blocks == 2 * 8192 // 16


def test_cuda_takes_larger_steps_and_more_of_its_memory():
    config = resolve(settings(), MODEL, DeviceMemory("cuda", 10 * GIB), CPU)
    assert config.max_num_batched_tokens == 2048
    assert config.num_device_blocks == int(10 * GIB * 0.85) // (16 * 23_040)


def test_pool_size_can_be_given_in_bytes():
    assert resolve(settings(kv_cache_bytes=str(10 * 16 * 23_040 + 1)), MODEL, CPU, CPU).num_device_blocks == 10


def test_pool_of_less_than_a_block_is_refused():
    with pytest.raises(SettingsError, match=r"^kv_cache_bytes"):
        resolve(settings(kv_cache_bytes="1000"), MODEL, CPU, CPU)
    with pytest.raises(SettingsError, match=r"^num_device_blocks"):
        resolve(settings(), MODEL, DeviceMemory("cpu", 1000), CPU)


def test_host_pool_is_as_large_as_the_device_pool_where_memory_allows():
    config = resolve(settings(), MODEL, CPU, CPU)
    assert config.num_host_blocks == config.num_device_blocks
    config = resolve(settings(), MODEL, DeviceMemory("cuda", 10 * GIB), DeviceMemory("cpu", GIB))
    assert config.num_host_blocks == GIB // 4 // (16 * 23_040)


def test_host_pool_can_be_given_in_blocks_or_bytes_or_left_out():
    assert resolve(settings(num_host_blocks="7"), MODEL, CPU, CPU).num_host_blocks == 7
    assert resolve(settings(host_cache_bytes=str(3 * 16 * 23_040)), MODEL, CPU, CPU).num_host_blocks == 3
    assert resolve(settings(num_host_blocks="0"), MODEL, CPU, CPU).num_host_blocks == 0
    assert resolve(settings(preemption_mode="recompute"), MODEL, CPU, CPU).num_host_blocks == 0


def test_swap_without_a_host_pool_is_refused():
    with pytest.raises(SettingsError, match=r"^preemption_mode swap needs num_host_blocks"):
        resolve(settings(preemption_mode="swap", num_host_blocks="0"), MODEL, CPU, CPU)


def test_every_knob_of_preemption_and_admission_reaches_the_scheduler():
    flags = {
        "preemption_mode": "swap",
        "partial_swap": False,
        "min_resident_steps": "3",
        "max_preemptions": "9",
        "link_share": "0.5",
        "target_step_ms": "80",
        "admission_reserve": "whole",
        "growth_reserve_tokens": "5",
        "enable_prefix_caching": False,
        "cache_min_share": "0.1",
        "cache_max_share": "0.6",
    }
    config = resolve(settings(**flags), MODEL, CPU, CPU)
    assert config.preemption_mode is PreemptionChoice.SWAP
    assert config.admission_reserve is AdmissionReserve.WHOLE
    assert (config.partial_swap, config.min_resident_steps, config.max_preemptions) == (False, 3, 9)
    assert (config.link_share, config.target_step_ms, config.growth_reserve_tokens) == (0.5, 80.0, 5)
    assert (config.enable_prefix_caching, config.cache_min_share, config.cache_max_share) == (False, 0.1, 0.6)


def test_open_step_size_follows_the_other_settings():
    assert resolve(settings(max_num_seqs="300"), MODEL, CPU, CPU).max_num_batched_tokens == 300
    whole = resolve(settings(enable_chunked_prefill=False), MODEL, CPU, CPU)
    assert whole.max_num_batched_tokens == 8192


def test_contradiction_that_only_the_scheduler_knows_names_the_setting():
    with pytest.raises(SettingsError) as caught:
        resolve(settings(max_num_batched_tokens="8"), MODEL, CPU, CPU)
    assert caught.value.setting == "max_num_batched_tokens"


@pytest.mark.parametrize(
    ("flags", "setting", "problem"),
    [
        ({"speculation": "some"}, "speculation", "not 'some'"),
        ({"speculation": "draft"}, "draft_model", "is required with speculation draft"),
        ({"speculation": "ngram", "draft_model": "/m"}, "draft_model", "contradicts speculation ngram"),
        ({"draft_model": "/m"}, "draft_model", "contradicts speculation off"),
        ({"speculation": "ngram", "num_draft_tokens": "0"}, "num_draft_tokens", "not '0'"),
        ({"min_draft_acceptance": "2"}, "min_draft_acceptance", "not '2'"),
    ],
)
def test_bad_setting_of_speculation_is_named(flags, setting, problem):
    with pytest.raises(SettingsError) as caught:
        settings(**flags)
    assert caught.value.setting == setting
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "num_draft_tokens"),
    [
        ({}, 0),
        ({"num_draft_tokens": "5"}, 0),
        ({"speculation": "ngram"}, 8),
        ({"speculation": "draft", "draft_model": "/m"}, 4),
        ({"speculation": "ngram", "num_draft_tokens": "5"}, 5),
    ],
)
def test_nothing_is_drafted_unless_speculation_is_on(flags, num_draft_tokens):
    config = resolve(settings(max_drafting_seqs="3", **flags), MODEL, CPU, CPU)
    assert config.num_draft_tokens == num_draft_tokens
    assert config.max_drafting_seqs == 3
