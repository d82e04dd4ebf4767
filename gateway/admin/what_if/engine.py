"""The engine in virtual time: `evenflow sim run` as a child process, with what the live engine says of itself.

A child, because the gateway never imports the engine; at a low priority and for a limited time, because it runs
beside live traffic. It gets a trace file of sizes and times, no text and no credentials.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections import abc
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.admin.what_if.door import Presented
from gateway.errors import InternalError, PreconditionError
from gateway.status import EngineStats
from gateway.store.snapshot import TenancySnapshot

EVENFLOW = (sys.executable, "-m", "gateway.cli.main")
# A quarter of a core that everybody wants: enough to end, where an engine keeps every core busy.
NICE = ("nice", "-n", "6")
TIME_LIMIT_S = 120.0
MAX_ERROR_CHARS = 500
NOT_COSTS = ("are_measured",)

Arrivals = abc.Sequence[tuple[str, Presented]]


@dataclass(frozen=True, slots=True)
class Served:
    """One team's requests in the engine. Seconds from arrival to the first token, None where nobody had one."""

    output_tokens: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engines that the traffic is served by: how many, and what each says of itself."""

    num_engines: int
    stats: EngineStats


async def simulate(arrivals: Arrivals, snapshot: TenancySnapshot, choice: EngineChoice) -> dict[str, Served]:
    """What became of the arrivals, by team; the smallest of many teams are left out.

    Raises PreconditionError if it takes too long or cannot be simulated.
    """
    if not arrivals:
        return {}
    with tempfile.TemporaryDirectory(prefix="evenflow-sim-") as scratch:
        trace, costs = Path(scratch) / "trace.jsonl", Path(scratch) / "costs.json"
        await asyncio.to_thread(_write_trace, trace, arrivals)
        costs.write_text(json.dumps({"name": "live", "coefficients": _coefficients(choice.stats)}))
        command = (*NICE, *EVENFLOW, "sim", "run", *engine_options(trace, costs, choice), *_tenancy(arrivals, snapshot))
        return _read(await _run(command))


async def _run(command: abc.Sequence[str]) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(TIME_LIMIT_S):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise PreconditionError(
            f"the simulation was not done after {TIME_LIMIT_S:.0f} s: choose a shorter window, or a time at which this "
            "machine is less busy"
        ) from error
    finally:
        if process.returncode is None:  # out of time, or whoever asked has gone
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()  # its pipes are closed
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise PreconditionError(f"the simulator failed: {(lines or ['no reason'])[-1][:MAX_ERROR_CHARS]}")
    return output


def _write_trace(path: Path, arrivals: Arrivals) -> None:
    first = arrivals[0][1].request.arrived_at
    with path.open("w") as lines:
        for team, each in arrivals:
            row = {
                "timestamp": (each.request.arrived_at - first).total_seconds() * 1000,
                "tenant": team,
                "input_length": max(1, each.request.input_tokens),
                "output_length": max(1, each.output_tokens),
                "priority_class": each.request.priority_class,
            }
            lines.write(json.dumps(row) + "\n")


def _coefficients(stats: EngineStats) -> dict[str, float]:
    return {name: value for name, value in asdict(stats.prices).items() if name not in NOT_COSTS}


def engine_options(trace: Path, costs: Path, choice: EngineChoice) -> list[str]:
    """The simulator's options that make its engine like the live ones, names and values in turn."""
    stats, policies, blocks = choice.stats, choice.stats.policies, choice.stats.blocks
    options = {
        "--trace": f"{trace},format=evenflow",
        "--costs": str(costs),
        "--policy": _policy(policies.scheduling_policy, policies.scheduling_options),
        "--preemption-policy": _policy(policies.preemption_policy, policies.preemption_options),
        "--preemption": policies.preemption_mode,
        "--engines": str(choice.num_engines),
        "--block-size": str(blocks.block_size),
        "--num-device-blocks": str(blocks.num_device_blocks),
        "--num-host-blocks": str(blocks.num_host_blocks),
        "--json": "-",
    }
    if stats.max_num_seqs:
        options |= {
            "--max-num-seqs": str(stats.max_num_seqs),
            "--max-num-batched-tokens": str(stats.max_num_batched_tokens),
        }
    return [text for option in options.items() for text in option]


def _policy(name: str, options: abc.Mapping[str, str]) -> str:
    given = ",".join(f"{option}={value}" for option, value in options.items())
    return f"{name}:{given}" if given else name


def _tenancy(arrivals: Arrivals, snapshot: TenancySnapshot) -> list[str]:
    """The weights of those who are there, and the classes that they ask for."""
    weights: dict[str, float] = {}
    for team in {each.request.team_id: snapshot.teams[each.request.team_id] for _, each in arrivals}.values():
        weights[team.organization.slug] = team.organization.weight
        weights[f"{team.organization.slug}/{team.slug}"] = team.weight
    texts = [f"--weight={path}={weight!r}" for path, weight in sorted(weights.items())]
    for name in sorted({each.request.priority_class for _, each in arrivals}):
        record = snapshot.classes.get(name)
        if record is not None:
            texts.append(f"--class={name}={record.rank}:{record.min_share!r}")
    return texts


def _read(output: bytes) -> dict[str, Served]:
    try:
        (run,) = json.loads(output)["runs"]
        return {
            tenant["name"]: Served(
                tenant["num_output_tokens"],
                tenant["latencies"]["ttft"]["p50_s"],
                tenant["latencies"]["ttft"]["p99_s"],
            )
            for tenant in run["tenants"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise InternalError from error
