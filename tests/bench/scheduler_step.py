"""What one step costs the scheduler: `plan` and `commit` with a runner that computes nothing, under each policy.

256 sequences run and 10,000 wait, of 1,000 tenants; 512 blocks are free, so that admission is tried at each plan and
the rows are what is short. A figure is the mean over the steps of a repetition; beside the wall time stands the CPU
time of the process, which other processes disturb less. `growth_with_waiting` compares 10,000 waiting with 100, whose
tenants are fewer then; `growth_with_waiting_same_tenants` has 100 tenants on both sides.
"""

import gc
import time
from dataclasses import dataclass

from engine.core.config import SchedulerConfig
from engine.core.scheduler import Scheduler
from engine.core.types import Nanos, PathNode, Request
from engine.plugins import load_preemption_policy, load_scheduling_policy
from engine.sim.reference_runner import ConstantRunner
from tests.bench.report import Report, arguments

POLICIES = ("fair", "fcfs", "priority", "vtc", "drr", "mlfq", "srpt", "edf")
VICTIMS = {"fair": "over_served"}
NUM_RUNNING = 256
PROMPT, OUTPUT = 64, 3_000
BLOCK_SIZE = 16
STEP_NS = 10_000_000
WARM_UP_STEPS = 40


@dataclass(frozen=True, slots=True)
class Load:
    num_waiting: int = 10_000
    num_tenants: int = 1_000


def make_scheduler(policy: str, load: Load, num_steps: int) -> Scheduler:
    """Everybody has arrived and nobody ends within `num_steps`."""
    config = SchedulerConfig(
        max_num_seqs=NUM_RUNNING,
        max_num_batched_tokens=2_048,
        block_size=BLOCK_SIZE,
        num_device_blocks=NUM_RUNNING * (-(-(PROMPT + num_steps) // BLOCK_SIZE) + 2) + 512,
        max_model_len=PROMPT + OUTPUT,
        num_host_blocks=1_024,
    )
    victims = load_preemption_policy(VICTIMS.get(policy, "latest_arrival"), {})
    scheduler = Scheduler(config, load_scheduling_policy(policy, {}), victims)
    token_ids = tuple(range(PROMPT))
    for index in range(NUM_RUNNING + load.num_waiting):
        path = (PathNode(f"org-{index % load.num_tenants}", 1.0), PathNode("team", 1.0))
        scheduler.add(Request(f"g{index}", path, token_ids, OUTPUT, Nanos(0)), Nanos(0))
    return scheduler


def measure(policy: str, load: Load, num_steps: int) -> tuple[float, float]:
    """Milliseconds of wall time and of CPU time per step, the runner's part left out."""
    scheduler = make_scheduler(policy, load, WARM_UP_STEPS + num_steps)
    gc.collect()
    gc.freeze()  # as the engine does after loading
    runner = ConstantRunner()
    wall = cpu = num_rows = 0.0
    for step in range(WARM_UP_STEPS + num_steps):
        now = Nanos(step * STEP_NS)
        began, cpu_began = time.perf_counter(), time.process_time()
        plan = scheduler.plan(now)
        planned, cpu_planned = time.perf_counter(), time.process_time()
        assert plan is not None
        output = runner.execute(plan)
        executed, cpu_executed = time.perf_counter(), time.process_time()
        scheduler.commit(output, Nanos(now + STEP_NS))
        if step >= WARM_UP_STEPS:
            wall += planned - began + time.perf_counter() - executed
            cpu += cpu_planned - cpu_began + time.process_time() - cpu_executed
            num_rows += len(plan.rows)
    gc.unfreeze()
    if num_rows < 0.95 * NUM_RUNNING * num_steps:
        raise RuntimeError(f"{policy}: {num_rows / num_steps:.0f} of {NUM_RUNNING} rows were computed per step")
    return wall / num_steps * 1e3, cpu / num_steps * 1e3


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="only this one; repeatable")
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    num_steps, repetitions = (50, 1) if args.quick else (300, args.repetitions)
    policies = args.policy or POLICIES
    report = Report(
        "scheduler_step",
        {
            "running": NUM_RUNNING,
            "waiting": Load().num_waiting,
            "tenants": Load().num_tenants,
            "steps": num_steps,
            "prompt": PROMPT,
            "block_size": BLOCK_SIZE,
        },
    )
    for _ in range(repetitions):
        for policy in policies:
            wall_ms, cpu_ms = measure(policy, Load(), num_steps)
            report.add(
                **{
                    f"{policy}_ms_per_step": wall_ms,
                    f"{policy}_us_per_running": wall_ms * 1e3 / NUM_RUNNING,
                    f"{policy}_cpu_ms_per_step": cpu_ms,
                }
            )
        if "fair" in policies:
            _, many_ms = measure("fair", Load(), num_steps)
            _, few_ms = measure("fair", Load(num_waiting=100), num_steps)
            _, many_same_ms = measure("fair", Load(10_000, 100), num_steps)
            _, few_same_ms = measure("fair", Load(100, 100), num_steps)
            report.add(
                growth_with_waiting=many_ms / few_ms,
                growth_with_waiting_same_tenants=many_same_ms / few_same_ms,
            )
    report.publish(args.json)


if __name__ == "__main__":
    main()
