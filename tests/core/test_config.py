"""Every setting changes what is planned, or is refused by name."""

import dataclasses

import pytest

from engine.core.config import AdmissionReserve, PreemptionChoice, SchedulerConfig
from engine.core.errors import RequestTooLargeError
from engine.core.types import SamplingParams
from tests.builders import Driver, make_config, make_request, make_scheduler

TIGHT: dict[str, object] = {
    "max_num_seqs": 6,
    "num_device_blocks": 32,
    "growth_reserve_tokens": 8,
    "num_host_blocks": 12,
    "min_resident_steps": 2,
    "max_num_batched_tokens": 24,
}


def plans(**fields: object) -> list[object]:
    """What is planned for a few requests of three tenants, more than fit; a refused one is part of it."""
    driver = Driver(make_scheduler("fair", "over_served", **(TIGHT | fields)), seed=1, max_copy_delay=1)
    result: list[object] = []
    for number, prompt in enumerate((30, 7, 19, 11, 5, 40, 8, 8, 21)):
        request = make_request(
            f"g{number}",
            tenant="abc"[number % 3],
            prompt=[1] * prompt,
            max_output_tokens=45,
            sampling=SamplingParams(),
            arrived_at=driver.now,
        )
        try:
            driver.add(request)
        except RequestTooLargeError:
            result.append(f"g{number} is refused")
        for _ in range(4):
            driver.step()
    driver.run()
    return [*result, *driver.plans]


CHANGES: dict[str, object] = {
    "max_num_seqs": 3,
    "max_num_batched_tokens": 16,
    "block_size": 8,
    "num_device_blocks": 20,
    "max_model_len": 80,
    "max_prefill_share": 0.5,
    "growth_reserve_tokens": 0,
    "admission_reserve": AdmissionReserve.WHOLE,
    "admission_interval": 5,
    "mix_prefill": False,
    "num_host_blocks": 0,
    "preemption_mode": PreemptionChoice.RECOMPUTE,
    "partial_swap": False,
    "min_resident_steps": 30,
    "max_preemptions": 0,
    "link_share": 0.1,
    "target_step_ms": 9.0,
    "num_draft_tokens": 3,
    "enable_prefix_caching": True,
}
DRAFT_CHANGES: dict[str, object] = {"max_drafting_seqs": 2, "min_draft_acceptance": 0.9, "draft_token_ns": 1.0}
OF_THE_CACHE: dict[str, object] = {"cache_min_share": 0.5, "cache_max_share": 0.3}


def test_equal_settings_give_equal_plans():
    assert plans() == plans()


@pytest.mark.parametrize(("setting", "value"), CHANGES.items())
def test_every_setting_changes_a_plan(setting: str, value: object):
    assert plans() != plans(**{setting: value})


@pytest.mark.parametrize(("setting", "value"), DRAFT_CHANGES.items())
def test_every_setting_of_drafts_changes_a_plan(setting: str, value: object):
    assert plans(num_draft_tokens=3) != plans(num_draft_tokens=3, **{setting: value})


@pytest.mark.parametrize(("setting", "value"), OF_THE_CACHE.items())
def test_every_setting_of_the_cache_changes_what_is_evicted(setting: str, value: object):
    limits = {"num_device_blocks": 20, "enable_prefix_caching": True, "cache_min_share": 0.0}
    found = []
    for fields in ({}, {setting: value}):
        driver = Driver(make_scheduler(**{**limits, **fields}))
        flood = [("b", [number, *range(23)]) for number in range(5)]
        for tenant, prompt in (("a", range(32)), *flood, ("a", range(32))):
            driver.add(make_request(tenant=tenant, prompt=prompt, max_output_tokens=1))
            driver.run()
        found.append(driver.scheduler.stats().totals.num_found_tokens)

    assert found[0] != found[1]


def test_without_chunked_prefill_no_prompt_is_computed_in_parts():
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 256, "max_model_len": 256, "num_device_blocks": 128}
    first_steps = []
    for enable_chunked_prefill in (True, False):
        driver = Driver(make_scheduler(**limits, enable_chunked_prefill=enable_chunked_prefill))
        driver.add(make_request("a", prompt=200), make_request("b", prompt=100))
        first_steps.append(driver.chunks())

    assert first_steps == [[("a", 0, 200), ("b", 0, 56)], [("a", 0, 200)]]


def test_every_setting_is_covered_above():
    covered = {*CHANGES, *DRAFT_CHANGES, *OF_THE_CACHE, "enable_chunked_prefill"}
    assert {field.name for field in dataclasses.fields(SchedulerConfig)} == covered


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
        ({"admission_interval": 0}, "admission_interval"),
        ({"num_host_blocks": -1}, "num_host_blocks"),
        ({"min_resident_steps": -1}, "min_resident_steps"),
        ({"max_preemptions": -1}, "max_preemptions"),
        ({"cache_min_share": 1.5}, "cache_min_share"),
        ({"cache_max_share": -0.1}, "cache_max_share"),
        ({"cache_min_share": 0.5, "cache_max_share": 0.4}, "cache_min_share .* cache_max_share"),
        ({"link_share": 0.0}, "link_share"),
        ({"link_share": float("nan")}, "link_share"),
        ({"target_step_ms": -1.0}, "target_step_ms"),
        ({"target_step_ms": float("inf")}, "target_step_ms"),
        ({"target_step_ms": float("nan")}, "target_step_ms"),
        ({"num_draft_tokens": 65}, "num_draft_tokens"),
        ({"min_draft_acceptance": 1.1}, "min_draft_acceptance"),
        ({"draft_token_ns": float("inf")}, "draft_token_ns"),
        ({"preemption_mode": PreemptionChoice.SWAP}, "preemption_mode swap needs num_host_blocks"),
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
