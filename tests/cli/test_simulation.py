"""What a simulation's answer says to a person."""

from datetime import timedelta
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.simulation import verdict
from tests.admin.service import AdminService
from tests.cli.command_line import CommandLine


def outcome(
    admitted: int = 10, refused: int = 0, p99_s: float | None = 1.0, p50_s: float | None = 0.5
) -> pb.SimulatedOutcome:
    return pb.SimulatedOutcome(admitted=admitted, refused=refused, ttft_p99=wait(p99_s), ttft_p50=wait(p50_s))


def wait(length_s: float | None) -> Duration | None:
    if length_s is None:
        return None
    made = Duration()
    made.FromTimedelta(timedelta(seconds=length_s))
    return made


@pytest.mark.parametrize(
    ("proposed", "words"),
    [
        (outcome(), "as now"),
        (outcome(p99_s=1.01), "as now"),
        (outcome(admitted=12), "2 more admitted"),
        (outcome(admitted=7, refused=3), "3 more refused"),
        (outcome(p99_s=2.0), "waits longer"),
        (outcome(admitted=11, p99_s=0.5), "1 more admitted, waits less"),
        (outcome(p50_s=0.8), "waits longer"),
        (outcome(p99_s=0.5, p50_s=0.8), "waits less"),
        (outcome(p99_s=None, p50_s=None), "as now"),
    ],
)
def test_verdict_says_who_gains_fails_and_waits(proposed: pb.SimulatedOutcome, words: str):
    assert verdict(pb.SimulatedTenant(current=outcome(), proposed=proposed)) == words


async def test_empty_past_is_said_and_a_bad_file_is_refused_before_the_server_is_asked(
    command_line: CommandLine, service: AdminService, tmp_path: Path
):
    ran = await command_line("quota-policies", "simulate", "--window", "1h")
    bad = await command_line("quota-policies", "simulate", "-f", str(tmp_path / "none.yaml"))
    as_json = (await command_line("quota-policies", "simulate", "-o", "json")).json()

    assert ran.exit_code == 0
    assert "0 requests and 0 refusals of the past, presented again under fair" in ran.stdout
    assert bad.exit_code == 2
    assert as_json["tenants"] == []
