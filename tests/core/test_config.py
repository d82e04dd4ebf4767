"""Every setting changes what is planned, or is refused by name."""

import dataclasses

import pytest

from engine.core.config import SchedulerConfig
from engine.core.errors import RequestTooLargeError
from tests.builders import Driver, make_config, make_request, make_scheduler


def plans(**fields: object) -> list[object]:
    """What is planned for a few requests; a refused one is part of it."""
    driver = Driver(make_scheduler(**fields))
    result: list[object] = []
    for number, prompt in enumerate((30, 7, 9, 11, 5)):
        try:
            driver.add(make_request(f"g{number}", prompt=[1] * prompt, max_output_tokens=35))
        except RequestTooLargeError:
            result.append(f"g{number} is refused")
    driver.run()
    return [*result, *driver.plans]


CHANGES: dict[str, object] = {
    "max_num_seqs": 3,
    "max_num_batched_tokens": 16,
    "block_size": 8,
    "num_device_blocks": 20,
    "max_model_len": 50,
    "max_prefill_share": 0.5,
    "growth_reserve_tokens": 0,
}


@pytest.mark.parametrize(("setting", "value"), CHANGES.items())
def test_every_setting_changes_a_plan(setting: str, value: object):
    assert plans(num_device_blocks=30) != plans(**{"num_device_blocks": 30, setting: value})


def test_without_chunked_prefill_no_prompt_is_computed_in_parts():
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 256, "max_model_len": 256, "num_device_blocks": 128}
    first_steps = []
    for enable_chunked_prefill in (True, False):
        driver = Driver(make_scheduler(**limits, enable_chunked_prefill=enable_chunked_prefill))
        driver.add(make_request("a", prompt=200), make_request("b", prompt=100))
        first_steps.append(driver.chunks())

    assert first_steps == [[("a", 0, 200), ("b", 0, 56)], [("a", 0, 200)]]


def test_every_setting_is_covered_above():
    assert {field.name for field in dataclasses.fields(SchedulerConfig)} == {*CHANGES, "enable_chunked_prefill"}


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"block_size": 0}, "block_size"),
        ({"num_device_blocks": 0}, "num_device_blocks"),
        ({"max_model_len": -1}, "max_model_len"),
        ({"growth_reserve_tokens": -1}, "growth_reserve_tokens"),
        ({"max_prefill_share": 0.0}, "max_prefill_share"),
        ({"max_prefill_share": 1.5}, "max_prefill_share"),
        ({"max_num_seqs": 33, "max_num_batched_tokens": 32}, "max_num_batched_tokens .* at least max_num_seqs"),
        ({"enable_chunked_prefill": False}, "max_num_batched_tokens .* longest request"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 1024, "max_prefill_share": 0.5},
            "max_prefill_share needs",
        ),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(fields: dict[str, object], setting: str):
    with pytest.raises(ValueError, match=setting):
        make_config(**fields)


def test_a_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_config().max_num_seqs = 7  # type: ignore[misc] # that is the point


def test_a_request_can_hold_what_both_the_context_and_the_pool_can():
    assert SchedulerConfig(1, 1, 4, 10, 100).max_request_tokens == 40
    assert SchedulerConfig(1, 1, 4, 10, 30).max_request_tokens == 30
