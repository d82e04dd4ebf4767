"""What this gateway and the LiteLLM proxy add to the same call on the same machine, and how many each carries.

Both are called over HTTP as OpenAI's API, by the same client. Ours has authentication, limits of key, team and
organization, ledger and a tenth of the traces on; the peer has a master key and nothing else. Behind each is an
upstream of its own kind, ours over gRPC, with the same delay and the same number of tokens. So many callers ask in a
closed loop; the three sides take turns. Added is the percentile through the proxy less that of the peer's upstream
called directly.

latency_ratio_*   what the peer adds over what ours adds
throughput_ratio  calls per second of ours over the peer's

Keys end in the number of callers; without it, they are the smallest of the three. The peer is no dependency: it is
installed in an environment of its own, which --peer-venv names.
"""

import argparse
import asyncio
import os
import secrets
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections import abc
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.gateway_world import Child, Side, child, gateway, job
from tests.bench.load_loops import MIN_P99_SAMPLES
from tests.bench.load_shape import Shape
from tests.bench.report import Report, arguments

PEER = "litellm[proxy]==1.105.7"
ANSWER = Shape(first_ms=10, gap_ms=0, num_chunks=16)
NUM_CALLERS = (1, 16, 64)
START_S = 120.0
HOW_TO = f"""no LiteLLM proxy is installed in {{venv}}; make it with
    python -m venv {{venv}} && {{venv}}/bin/pip install '{PEER}'"""
CONFIG = """model_list:
  - model_name: bytes
    litellm_params: {{model: openai/bytes, api_base: {address}/v1, api_key: none}}
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of each measurement: at least so long, at least so many calls."""

    duration_s: float
    min_samples: int


FULL = Sizes(duration_s=4, min_samples=MIN_P99_SAMPLES)
QUICK = Sizes(duration_s=1.5, min_samples=20)


@dataclass(frozen=True, slots=True)
class Way:
    """A client and where it calls."""

    client: Child
    side: Side


@asynccontextmanager
async def peer(venv: Path, upstream: str) -> abc.AsyncIterator[Side]:
    """The proxy with a master key in front of `upstream`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    key = f"sk-{secrets.token_hex(16)}"
    environment = {
        **os.environ,
        "LITELLM_MASTER_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
    }
    with tempfile.TemporaryDirectory(prefix="evenflow-") as directory:
        config = Path(directory) / "config.yaml"
        config.write_text(CONFIG.format(address=upstream))
        words = ("--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False")
        process = await asyncio.create_subprocess_exec(
            str(venv / "bin" / "litellm"),
            *words,
            cwd=directory,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            await asyncio.to_thread(_wait_until_up, f"http://127.0.0.1:{port}/health/liveliness", process)
            yield Side(f"http://127.0.0.1:{port}", key)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


def _wait_until_up(url: str, process: asyncio.subprocess.Process) -> None:
    ends_s = time.monotonic() + START_S
    while time.monotonic() < ends_s and process.returncode is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError("the peer did not come up")


@asynccontextmanager
async def ways(venv: Path) -> abc.AsyncIterator[dict[str, Way]]:
    """Both proxies and the peer's upstream, with the client that calls them."""
    python = str(venv / "bin" / "python")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="evenflow-"))
        addresses = await (await enter(child("tests.bench.fake_upstream", directory))).tell()
        http_address = (await (await enter(child("tests.bench.peer_http", "serve", python=python))).tell())["address"]
        client = await enter(child("tests.bench.peer_http", "load", python=python))
        ours = await enter(gateway(addresses))
        yield {
            "direct": Way(client, Side(http_address)),
            "peer": Way(client, await enter(peer(venv, http_address))),
            "ours": Way(client, ours.http),
        }


async def measure(found: dict[str, Way], sizes: Sizes) -> dict[str, float]:
    """One repetition."""
    metrics: dict[str, float] = {}
    for num_callers in NUM_CALLERS:
        results = {}
        for name, way in found.items():
            told = job(way.side, ANSWER, sizes.duration_s, callers=num_callers, min_samples=sizes.min_samples)
            results[name] = await way.client.tell(told)
        metrics |= _raw(results, num_callers) | _ratios(results, num_callers)
    for name in ("latency_ratio_p50", "latency_ratio_p99", "throughput_ratio"):
        metrics[name] = min(metrics[f"{name}_{num_callers}"] for num_callers in NUM_CALLERS)
    return metrics


def _raw(results: dict[str, dict[str, float]], num_callers: int) -> dict[str, float]:
    metrics = {}
    for name, result in results.items():
        for measured in ("whole_p50_ms", "whole_p99_ms", "calls_per_second", "client_cpu"):
            metrics[f"{name}_{measured.removeprefix('whole_')}_{num_callers}"] = result[measured]
    return metrics


def _ratios(results: dict[str, dict[str, float]], num_callers: int) -> dict[str, float]:
    def added(name: str, quantile: str) -> float:
        return results[name][f"whole_{quantile}_ms"] - results["direct"][f"whole_{quantile}_ms"]

    ratios = {f"latency_ratio_{q}_{num_callers}": added("peer", q) / added("ours", q) for q in ("p50", "p99")}
    throughput = results["ours"]["calls_per_second"] / results["peer"]["calls_per_second"]
    return {**ratios, f"throughput_ratio_{num_callers}": throughput}


async def repeat(report: Report, venv: Path, sizes: Sizes, num_repetitions: int) -> None:
    async with ways(venv) as found:
        for way in found.values():  # warm-up
            await way.client.tell(job(way.side, ANSWER, 1, callers=16, min_samples=20))
        for _ in range(num_repetitions):
            report.add(**await measure(found, sizes))


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--peer-venv", type=Path, required=True, help=f"a virtual environment with {PEER}")
    options = parser.parse_args()
    venv = options.peer_venv.absolute()
    if not (venv / "bin" / "litellm").exists():
        parser.error(HOW_TO.format(venv=venv))
    config = {"peer": PEER, "delay_ms": ANSWER.first_ms, "output_tokens": ANSWER.num_tokens}
    report = Report("gateway_peer", config)
    num_repetitions = 1 if options.quick else options.repetitions
    asyncio.run(repeat(report, venv, QUICK if options.quick else FULL, num_repetitions))
    report.publish(options.json)


if __name__ == "__main__":
    main()
