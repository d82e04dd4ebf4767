"""The simulator: how wrong, and how fast.

error      against the live engine with the default model on three traffics, under `fair` and `fcfs`; the cost line is
           profiled in this process. Against the published A10G run, with one free factor on all costs.
order      of the policies by TTFT p99 on each traffic, simulated and live
speed      requests per CPU second on Azure's chat and code traces at full lengths, stretched to 0.7 and 1.5 of C
tenants    CPU time of the same requests as 10,000 tenants over that as 10
memory     of a process that streams made-up requests of 10,000 tenants through eight engines

Traces are read from --traces or EVENFLOW_TRACES. `--no-live` leaves out what needs the model.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import abc
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from engine.core.config import SchedulerConfig
from engine.decision_log import PolicyChoice
from engine.sim.capacity import capacity
from engine.sim.cost_lines import A10G
from engine.sim.metrics import Recorder
from engine.sim.published import compare_with_published
from engine.sim.run import Setup, parse_policy, simulate
from engine.sim.traffic.generate import generate, parse_generator
from engine.sim.traffic.reshape import Shape, load_of, reshape, stretch_for_load
from engine.sim.traffic.source import TrafficSource, open_traffic
from engine.sim.traffic.trace import Trace
from tests.bench.report import Report, arguments

LIMITS = SchedulerConfig(
    max_num_seqs=16,
    max_num_batched_tokens=8192,
    block_size=16,
    num_device_blocks=4096,
    max_model_len=16_384,
    num_host_blocks=4096,
)
LIVE_TRAFFICS = {
    "one tenant": "tenants=1,rate=1,prompt=uniform:32:128,output=uniform:16:64,requests=150",
    "light and heavy": "tenants=8,zipf=1,rate=1,prompt=lognormal:64:0.8:512,output=lognormal:32:0.6:128,requests=150",
    "bursts": "tenants=4,arrivals=onoff:5:5,rate=2,prompt=uniform:32:256,output=uniform:8:64,requests=150",
}
LIVE_LOADS = {"one tenant": 0.7, "light and heavy": 1.0, "bursts": 1.0}
SCALE_TRAFFIC = (
    "tenants=10000,zipf=1,rate={rate},prompt=lognormal:128:0.8:2048,output=lognormal:64:0.8:512,requests={count}"
)
SCALE_ENGINES = 8


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--traces", type=Path, default=os.environ.get("EVENFLOW_TRACES"))
    parser.add_argument("--policy", default="fair", help="for speed, growth and memory")
    parser.add_argument("--no-live", action="store_true", help="leave out what needs the model")
    parser.add_argument("--scale-requests", type=int, default=1_000_000)
    parser.add_argument("--measure-memory", action="store_true", help="(internal) one run, its figures as JSON")
    args = parser.parse_args()
    if args.measure_memory:
        print(json.dumps(run_at_scale(args.policy, args.scale_requests)))
        return
    num_requests = 2000 if args.quick else 28_185
    report = Report("simulator", {"policy": args.policy, "requests": num_requests, "limits": str(LIMITS)})
    if args.traces is not None:
        report.add(published_error=compare_with_published(args.traces).worst_error())
        measure_speed(report, args.traces, args.policy, num_requests)
    count = 20_000 if args.quick else args.scale_requests
    report.add(**measure_memory(args.policy, count))
    if not args.no_live:
        measure_live(report, num_requests=30 if args.quick else None)
    report.publish(args.json)


def measure_speed(report: Report, folder: Path, policy: str, num_requests: int) -> None:
    """Requests per CPU second at both loads, also of `fcfs`, and the growth with tenants."""
    for name, suffix in ((policy, ""), ("fcfs", "_fcfs")):
        for load in (0.7, 1.5):
            traffic, setup, work_per_s = azure(folder, name, load, "column", num_requests)
            rate = requests_per_cpu_second(setup, traffic, num_requests)
            report.add(**{f"requests_per_cpu_second_load_{str(load).replace('.', '_')}{suffix}": rate})
            report.add(work_per_s=work_per_s)
    few, many = (
        requests_per_cpu_second(*reversed(azure(folder, policy, 0.7, f"zipf:{count}", num_requests)[:2]), num_requests)
        for count in (10, 10_000)
    )
    report.add(growth_10_to_10000_tenants=few / many)


def azure(folder: Path, policy: str, load: float, tenants: str, num_requests: int) -> tuple[Trace, Setup, float]:
    """The two traces at that load, what serves them, and C."""
    source = TrafficSource(
        ("azure2023_conv", "azure2023_code"), tenants=tenants, shape=Shape(max_requests=num_requests)
    )
    trace = open_traffic(source, folder)
    setup = Setup(LIMITS, A10G, parse_policy(policy), PolicyChoice("over_served", {}))
    offered = load_of(trace)
    lengths = (offered.num_prompt_tokens // offered.num_requests, offered.num_output_tokens // offered.num_requests)
    work_per_s = capacity(setup, *lengths)
    stretch = stretch_for_load(offered, load, work_per_s)
    return reshape(trace, Shape(time_stretch=stretch)), setup, work_per_s


def requests_per_cpu_second(setup: Setup, traffic: abc.Iterable[object], num_requests: int) -> float:
    """The recorder's time is included, that of reading the traces too."""
    began = time.process_time()
    simulate(setup, traffic, Recorder())
    return num_requests / (time.process_time() - began)


def run_at_scale(policy: str, num_requests: int) -> dict[str, float]:
    """Many tenants on several engines, streamed. Peak memory is that of the whole process."""
    setup = Setup(LIMITS, A10G, parse_policy(policy), PolicyChoice("over_served", {}), num_engines=SCALE_ENGINES)
    rate = 0.7 * SCALE_ENGINES * capacity(replace(setup, num_engines=1), 170, 85) / (170 + 2 * 85)
    traffic = generate(parse_generator(SCALE_TRAFFIC.format(rate=f"{rate:.6g}", count=num_requests)))
    began = time.process_time()
    simulate(setup, traffic, Recorder())
    elapsed = time.process_time() - began
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"peak_memory_mb": peak_mb, "requests_per_cpu_second_at_scale": num_requests / elapsed}


def measure_memory(policy: str, num_requests: int) -> dict[str, float]:
    """In a process of its own, so that nothing else counts."""
    command = [sys.executable, "-m", "tests.bench.simulator", "--measure-memory", "--policy", policy]
    result = subprocess.run(
        [*command, "--scale-requests", str(num_requests)], check=True, capture_output=True, text=True
    )
    figures: dict[str, float] = json.loads(result.stdout)
    return figures


def measure_live(report: Report, num_requests: int | None) -> None:
    """Each traffic both ways. An error counts as it is; what is allowed for a noisy machine stands beside it."""
    from engine.commands.profiling.profile import profile_line
    from engine.commands.simulation.live import LiveEngine, LiveSize
    from engine.commands.simulation.validation import Plan, compare, comparison_table, order_of

    live = LiveEngine(LiveSize(None, 16, 256, 512, 512).load())
    policies = (parse_policy("fair"), parse_policy("fcfs"))
    folder = tempfile.TemporaryDirectory()
    line = Path(folder.name) / "line.json"
    errors: dict[str, list[float]] = {"p50": [], "p99": []}
    num_equal = 0
    for name, text in LIVE_TRAFFICS.items():
        line.write_text(json.dumps({"coefficients": profile_line(live.backend).coefficients()}))
        trace = generate(parse_generator(text))
        trace = reshape(trace, Shape(max_requests=num_requests)) if num_requests else trace
        plan = Plan(policies, PolicyChoice("over_served", {}), str(line), LIVE_LOADS[name], num_repeats=2)
        compared = compare(live, trace, plan)
        Console().print(name, comparison_table(compared))
        num_equal += order_of(compared, "TTFT p99", live=True) == order_of(compared, "TTFT p99", live=False)
        for each in compared:
            report.add(step_over_line=each.step_over_line)
            for figure in each.figures:
                errors[figure.name.rpartition(" ")[2]].append(abs(figure.error))
                report.add(
                    **{
                        f"{figure.name.replace(' ', '_').lower()}_error_over_allowed": abs(figure.error)
                        / figure.allowed
                    }
                )
    folder.cleanup()
    report.add(p50_error=max(errors["p50"]), p99_error=max(errors["p99"]), equal_order=num_equal / len(LIVE_TRAFFICS))


if __name__ == "__main__":
    main()
