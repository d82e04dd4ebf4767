"""Limits as people write them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.errors import UsageError
from gateway.cli.limits import DIMENSIONS, duration_text, limit_text, merge_limits, parse_duration, parse_limit


@pytest.mark.parametrize(
    "text",
    [
        "requests=60/1m",
        "total_tokens=100000/1m:burst=20000",
        "input_tokens=7/250ms",
        "output_tokens=5/2d:burst=1:model=a/b",
        "concurrency=4",
        "concurrency=4:model=m",
    ],
)
def test_limit_reads_as_it_was_written(text: str):
    assert limit_text(parse_limit(text)) == text


@pytest.mark.parametrize(
    "text", [f"requests={'9' * 20}/1m", f"requests=1/1m:burst={2**63}", "concurrency=" + "9" * 6000]
)
def test_number_that_no_message_can_hold_is_refused(text: str):
    with pytest.raises(UsageError, match="is too large"):
        parse_limit(text)


@given(
    dimension=st.sampled_from(sorted(DIMENSIONS)),
    amount=st.integers(1, 10**15),
    period_ms=st.integers(1, 10**10),
    burst=st.integers(0, 10**15),
)
def test_every_limit_survives_its_text(dimension: str, amount: int, period_ms: int, burst: int):
    limit = pb.QuotaLimit(dimension=DIMENSIONS[dimension], limit=amount, burst=burst)
    limit.period.FromTimedelta(timedelta(milliseconds=period_ms))

    assert parse_limit(limit_text(limit)) == limit


@given(st.integers(1, 10**12))
def test_every_length_survives_its_text(num_ms: int):
    length = timedelta(milliseconds=num_ms)

    assert parse_duration(duration_text(length)) == length


def test_changed_limit_replaces_the_one_of_its_dimension_and_model():
    current = [parse_limit("requests=60/1m"), parse_limit("requests=6/1m:model=m"), parse_limit("concurrency=4")]

    merged = merge_limits(current, [parse_limit("requests=70/1m"), parse_limit("input_tokens=5/1s")])

    assert [limit_text(limit) for limit in merged] == [
        "requests=70/1m",
        "requests=6/1m:model=m",
        "concurrency=4",
        "input_tokens=5/1s",
    ]
