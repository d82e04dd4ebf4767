"""Mutation runs: up to 150 seeded faults in the scheduler, `fair`, the quota core and leases, a process each.

    python -m tests.mutants [--count 150] [--seed 0] [--jobs 1] [--only TEXT] [--list]

A fault that leaves every plan of the fixed traffic as it was is *same*: for plans it is no fault. One that changes a
plan must be killed, by a check on that traffic or by a test, or be explained in `explained.txt`: one line each, its
name, two spaces, a dash, and why it may live. Exit status 1 if one survives unexplained.
"""

import argparse
import random
import subprocess
import sys
import time
from collections import Counter, abc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.child import KINDS
from tests.mutants.operators import Mutant, find_mutants

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 600
SCHEDULER = [
    *("admission", "band", "block_manager", "block_pool", "committer", "demand", "flow", "lifecycle", "memory"),
    *("pacing", "planner", "preemption", "ranking", "reserve", "row_giver", "rows", "scheduler", "step", "victims"),
]
LEASES = ["book", "claims", "decisions", "emergency", "holdings", "rates", "shares", "terms", "turns"]
QUOTA = ["quota", "quota_budgets", "quota_gcra", "quota_reservations", "quota_terms"]


def modules() -> dict[str, Path]:
    """The mutated modules that there are."""
    found = {f"engine.core.{name}": ROOT / f"engine/core/{name}.py" for name in SCHEDULER}
    for path in sorted((ROOT / "policies/fair").glob("*.py")):
        if path.stem != "__init__":
            found[f"policies.fair.{path.stem}"] = path
    found["policies.over_served"] = ROOT / "policies/over_served.py"
    for name in QUOTA:
        found[f"gateway.{name}"] = ROOT / f"gateway/{name}.py"
    for name in LEASES:
        found[f"gateway.leases.{name}"] = ROOT / f"gateway/leases/{name}.py"
    return {name: path for name, path in found.items() if path.exists()}


def choose(count: int, seed: int, only: str) -> list[Mutant]:
    """A seeded choice of all mutants, in source order."""
    mutants = [mutant for name, path in modules().items() for mutant in find_mutants(name, path)]
    mutants = [mutant for mutant in mutants if only in mutant.name]
    chosen = set(random.Random(seed).sample(range(len(mutants)), min(count, len(mutants))))
    return [mutant for index, mutant in enumerate(mutants) if index in chosen]


def explained() -> dict[str, str]:
    lines = (Path(__file__).parent / "explained.txt").read_text().splitlines()
    pairs = [line.split("  - ", 1) for line in lines if line.strip() and not line.startswith("#")]
    return {name.strip(): why for name, why in pairs}


def run_child(*arguments: str) -> str:
    """The last line that the child printed, or what ended it."""
    command = [sys.executable, "-m", "tests.mutants.child", *arguments]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return "killed by the time limit"
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return f"killed by exit status {done.returncode}: {done.stderr.strip()[-200:]}"
    return lines[-1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="only mutants whose name contains this")
    parser.add_argument("--list", action="store_true", help="name them and run nothing")
    options = parser.parse_args()
    mutants = choose(options.count, options.seed, options.only)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.line:4} {mutant.name}")
        return 0
    return report(mutants, options.jobs)


def report(mutants: list[Mutant], num_jobs: int) -> int:
    baseline = run_child().split()
    if len(baseline) != len(KINDS):
        print("the code as it is does not pass:", " ".join(baseline))
        return 1
    expected = dict(zip(KINDS, baseline, strict=True))
    reasons, outcomes, survivors = explained(), Counter[str](), []
    for mutant, verdict, seconds in _run(mutants, expected, num_jobs):
        outcome = verdict.split()[0]
        if outcome == "survived" and mutant.name in reasons:
            outcome = "explained"
        outcomes[outcome] += 1
        survivors += [mutant] if outcome == "survived" else []
        print(f"{outcome:9} {seconds:5.1f} s  {mutant.name}  [{verdict[:100]}]", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))
    for mutant in survivors:
        print(f"SURVIVED line {mutant.line}: {mutant.name}")
    return 1 if survivors else 0


def _run(
    mutants: list[Mutant], expected: abc.Mapping[str, str], num_jobs: int
) -> abc.Iterator[tuple[Mutant, str, float]]:
    def run(mutant: Mutant) -> tuple[Mutant, str, float]:
        start = time.monotonic()
        kind = next((kind for kind in KINDS if mutant.module.startswith(kind)), KINDS[0])
        verdict = run_child(mutant.module, str(mutant.index), expected[kind])
        return mutant, verdict, time.monotonic() - start

    with ThreadPoolExecutor(num_jobs) as pool:
        yield from pool.map(run, mutants)


if __name__ == "__main__":
    sys.exit(main())
