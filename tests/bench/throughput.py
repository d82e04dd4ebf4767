"""Tokens per second on the workloads W1-W5, beside a peer on the same token ids.

The engine of the product, its loop on a thread of its own, in each precision; the peer, if one is named, in a process
of its own Python. All take turns within a repetition, in an order that turns round with each, and wait without a core
while others run. Output tokens of W1, W2 and W4, prompt tokens of W3, wall seconds of W5. `X_ratio` is our best
precision over the peer, `X_bf16_ratio` that of bfloat16; larger is better in both. docs/benchmarks.md says how a peer
is installed.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections import abc
from dataclasses import dataclass
from pathlib import Path

import grpc

from engine import machine
from engine.settings import EngineSettings
from evenflow.engine.v1 import engine_pb2_grpc
from tests.bench import workloads
from tests.bench.live_engine import NANOS_PER_S, Job, LiveEngine, Run, percentile
from tests.bench.peers.process import DRIVERS, Outcome, Peer
from tests.bench.report import Report, arguments
from tests.bench.workloads import Row
from tests.engine.engine_process import engine_process
from tests.engine.wire import start

POOL_TOKENS, W4_POOL_TOKENS, BLOCK_SIZE = 24_576, 8_192, 16
PRECISIONS = {
    "f32": {"dtype": "float32"},
    "bf16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
}
PREFIX_CACHE = "enable_prefix_caching"


@dataclass(frozen=True, slots=True)
class Workload:
    """`num_counted` tokens are what its rate counts."""

    name: str
    rows: list[Row]
    num_counted: int

    @classmethod
    def of_output(cls, name: str, rows: list[Row]) -> "Workload":
        return cls(name, rows, sum(row.num_output for row in rows))

    @classmethod
    def of_prompts(cls, name: str, rows: list[Row]) -> "Workload":
        return cls(name, rows, sum(len(row.prompt) for row in rows))


def rated(*, is_quick: bool) -> list[Workload]:
    """Those that tokens per second are told of."""
    num_output = 16 if is_quick else 128
    return [
        Workload.of_output("W1", workloads.w1(8 if is_quick else 64)),
        *(Workload.of_output(f"W2_b{batch}", workloads.w2(batch, num_output)) for batch in (1, 8, 32)),
        Workload.of_prompts("W3", workloads.w3(2 if is_quick else 16)),
    ]


def serve(engine: LiveEngine, rows: abc.Sequence[Row], **limits: object) -> Outcome:
    """All of `rows`, each sent when it is due."""
    jobs = [Job(row.arrival_s, row.tenant, len(row.prompt), row.num_output, row.prompt) for row in rows]

    def is_over(run: Run) -> bool:
        return len(run.calls) == len(jobs) and not any(run.left.values())

    run = engine.serve(jobs, is_over, **limits)
    if any(not call.is_complete for call in run.calls):
        raise RuntimeError("a request has ended before its length")
    wall_ns = max(call.token_ns[-1] for call in run.calls) - run.began_ns
    return Outcome(wall_ns / NANOS_PER_S, [call.ttft_s for call in run.calls])


def compare(
    report: Report, sides: abc.Mapping[str, abc.Callable[[list[Row]], Outcome]], load: Workload, turn: int
) -> None:
    """One repetition of one workload on every side, one after the other."""
    rows = workloads.repetition(load.rows, turn)
    order = list(sides) if turn % 2 else list(reversed(sides))
    rate = {side: load.num_counted / sides[side](rows).wall_s for side in order}
    report.add(**{f"{load.name}_{side}_tokens_per_second": rate[side] for side in sides})
    if "peer" in rate:
        ours = {side: value for side, value in rate.items() if side != "peer"}
        report.add(**{f"{load.name}_ratio": max(ours.values()) / rate["peer"]})
        if "bf16" in ours:
            report.add(**{f"{load.name}_bf16_ratio": ours["bf16"] / rate["peer"]})


def flood(report: Report, engine: LiveEngine, turn: int, *, is_quick: bool) -> None:
    """W4: one tenant floods, the other sends a short request each second."""
    rows = workloads.repetition(workloads.w4(*((3, 3) if is_quick else (24, 30))), turn)
    outcome = serve(engine, rows, num_device_blocks=W4_POOL_TOKENS // BLOCK_SIZE)
    waits = [ttft for row, ttft in zip(rows, outcome.ttft_s, strict=True) if row.tenant == "B" and ttft is not None]
    report.add(
        W4_b_ttft_p50_s=percentile(waits, 0.5),
        W4_b_ttft_p95_s=percentile(waits, 0.95),
        W4_tokens_per_second=sum(row.num_output for row in rows) / outcome.wall_s,
    )


def share_prefix(report: Report, engine: LiveEngine, turn: int, *, is_quick: bool) -> None:
    """W5, all at once: with the prefix cache, where the engine has one, and without."""
    rows = workloads.w5(4 if is_quick else 32)
    without = {PREFIX_CACHE: False} if PREFIX_CACHE in EngineSettings.model_fields else {}
    if without:
        report.add(W5_wall_s=serve(engine, workloads.repetition(rows, 2 * turn)).wall_s)
    report.add(W5_no_cache_wall_s=serve(engine, workloads.repetition(rows, 2 * turn + 1), **without).wall_s)


def start_to_first_token_s(*flags: str) -> float:
    """From the start of an engine's process, with a warm disk, to its first token."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, engine_process("engine", Path(folder), *flags) as process:
        process.wait_until_serving()
        with grpc.insecure_channel(process.target) as channel:
            stub = engine_pb2_grpc.EngineServiceStub(channel)
            for message in stub.Generate(iter([start("first", max_output_tokens=1)])):
                if message.WhichOneof("message") == "token_chunk":
                    return time.perf_counter() - began
    raise RuntimeError("the engine has sent no token")


def run(report: Report, args: argparse.Namespace, engines: abc.Mapping[str, LiveEngine], peer: Peer | None) -> None:
    sides: dict[str, abc.Callable[[list[Row]], Outcome]] = {
        name: lambda rows, engine=engine: serve(engine, rows) for name, engine in engines.items()
    }
    if peer is not None:
        sides["peer"] = peer.serve
    loads = [load for load in rated(is_quick=args.quick) if not args.only or load.name in args.only]
    for side in sides.values():  # warm-up
        side(workloads.w1(4))
        side(workloads.w2(8, 8))
    best = engines.get("int8") or next(iter(engines.values()))
    for turn in range(1 if args.quick else args.repetitions):
        for load in loads:
            compare(report, sides, load, turn)
        if not args.only or "W4" in args.only:
            flood(report, best, turn, is_quick=args.quick)
        if not args.only or "W5" in args.only:
            share_prefix(report, best, turn, is_quick=args.quick)
        if not args.only or "start" in args.only:
            report.add(start_to_first_token_s=start_to_first_token_s("--num-threads", str(args.threads)))


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--peer", choices=DRIVERS, help="measured in turn with ours")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PATH", help="the Python that has it")
    parser.add_argument("--peer-model", metavar="PATH", help="the model in the peer's form; default: our own file")
    parser.add_argument("--peer-dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--precisions", nargs="+", default=["bf16", "int8"], choices=PRECISIONS)
    parser.add_argument("--only", nargs="+", help="W1, W2_b1, W2_b8, W2_b32, W3, W4, W5, start")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=machine.num_cores())
    args = parser.parse_args()
    sizes = {"num_device_blocks": POOL_TOKENS // BLOCK_SIZE, "block_size": BLOCK_SIZE, "num_threads": args.threads}
    engines = {name: LiveEngine(**sizes, device="cpu", **PRECISIONS[name]) for name in args.precisions}
    config = {name: engine.describe() for name, engine in engines.items()}
    with contextlib.ExitStack() as stack:
        peer = None
        if args.peer is not None:
            peer = Peer(args.peer, args.peer_python, args.peer_model or _own_file(), args.peer_dtype, args.threads)
            stack.callback(peer.close)
            config["peer"] = peer.description
        report = Report("throughput", config)
        run(report, args, engines, peer)
        report.publish(args.json)


def _own_file() -> str:
    from engine.model.default_model import find_default_model

    return str(find_default_model())


if __name__ == "__main__":
    main()
