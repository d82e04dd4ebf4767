"""What a tenant's page draws of its use."""

from datetime import UTC, datetime, timedelta

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.tenant_use import DAYS, latency_chart

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def used(day: int, requests: int, **seconds: int) -> pb.UsageSum:
    row = pb.UsageSum(request_count=requests)
    row.start_time.FromDatetime(BEGIN + timedelta(days=day))
    for name, length_s in seconds.items():
        getattr(row, f"{name}_time").FromSeconds(length_s)
    return row


def test_a_day_shows_what_one_average_request_spent_its_time_on() -> None:
    chart = latency_chart([used(2, 4, queue=8, prefill=2, decode=20)], BEGIN)

    table = str(chart.table)
    assert table.count("<tr") >= DAYS
    assert "2 s" in table
    assert "500 ms" in table
    assert "5 s" in table


def test_without_a_request_nothing_is_drawn() -> None:
    assert "<rect" not in str(latency_chart([], BEGIN).picture)
    assert "<rect" not in str(latency_chart([used(1, 0)], BEGIN).picture)
