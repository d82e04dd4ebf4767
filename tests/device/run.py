"""Checks and times the GPU path on the machine that it is started on: `python tests/device/run.py [--json FILE]`.

Needs torch with CUDA, Triton, numpy and numba, and nothing installed of ours: it reads the source tree around it. Takes
less than eight minutes. With --interpret everything runs at tiny sizes on a CPU, in Triton's interpreter: that shows
that the kernels are right and that this script runs, and says nothing about speed.

Exit code 0 if every check holds.
"""

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time
import traceback
from collections import abc
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]

if TYPE_CHECKING:
    import torch

    from tests.device.kernel_checks import Check, Job
    from tests.device.speed import Sizes, Timing

PARTS = ("kernels", "engine", "timings")
BUDGET_S = 400.0  # timings that would begin later are left out, and said to be


UNUSED = ("llguidance",)  # packages that what is run here imports and does not use


class _StandIn(ModuleType):
    """A package that is not there: anything can be imported from it."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def main() -> int:
    """Everything, in the order of what one wants to know first; returns the exit code."""
    options = _parse()
    _prepare(interpret=options.interpret)
    import torch

    started_at = time.monotonic()
    device = torch.device("cpu" if options.interpret else "cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device; --interpret runs the checks in Triton's interpreter", file=sys.stderr)
        return 2
    machine = _machine(device)
    print(*(f"{name}: {value}" for name, value in machine.items()), sep="\n", flush=True)
    checks = [check for job in _jobs(options.part, device) for check in _tried(job)]
    timings = list(_timed(device, started_at + BUDGET_S)) if "timings" in options.part else []
    took_s = time.monotonic() - started_at
    _print_table(checks, timings)
    failed = [check for check in checks if not check.holds]
    print(f"{len(checks) - len(failed)} checks hold, {len(failed)} do not; {took_s:.0f} s")
    if options.json is not None:
        document = {
            "machine": machine,
            "took_s": round(took_s, 1),
            "checks": [asdict(check) | {"holds": check.holds} for check in checks],
            "timings": [asdict(timing) for timing in timings],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interpret", action="store_true", help="tiny sizes on a CPU, in Triton's interpreter")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; repeatable")
    parser.add_argument("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    options.part = options.part or PARTS
    return options


def _prepare(*, interpret: bool) -> None:
    """Our packages are found, and Triton, which is imported after this, knows how to run."""
    sys.path[0] = str(ROOT)
    for name in UNUSED:
        try:
            import_module(name)
        except ImportError:
            sys.modules[name] = _StandIn(name)
    os.environ.pop("TRITON_INTERPRET", None)
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.setdefault(
            "EVENFLOW_CACHE", tempfile.mkdtemp(prefix="evenflow-cache-")
        )  # whatever the home folder is


def _machine(device: "torch.device") -> dict[str, str]:
    import torch
    import triton

    is_cuda = device.type == "cuda"
    return {
        "card": torch.cuda.get_device_name(device) if is_cuda else "none: Triton's interpreter",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _jobs(parts: abc.Collection[str], device: "torch.device") -> "abc.Iterator[Job]":
    from functools import partial

    from tests.device.end_to_end import check_engine
    from tests.device.kernel_checks import large_jobs, small_jobs

    is_large = device.type == "cuda"
    if "kernels" in parts:
        yield from small_jobs(device)
        if is_large:
            yield from large_jobs(device)
    if "engine" in parts:
        yield partial(check_engine, device, is_large=is_large, window=5)
        if is_large:
            yield partial(check_engine, device, is_large=is_large)


def _tried(job: "Job") -> "list[Check]":
    """What `job` found. One that raises is a check that does not hold: the others are wanted all the same."""
    from tests.device.kernel_checks import Check

    try:
        found = job()
    except Exception as error:  # noqa: BLE001  whatever a compiler or a card comes up with
        traceback.print_exc()
        return [Check(getattr(job, "func", job).__name__, f"{type(error).__name__}: {error}"[:200], math.inf, 0.0)]
    return found if isinstance(found, list) else [found]


def _timed(device: "torch.device", deadline: float) -> abc.Iterator["Timing"]:
    import torch

    from engine.kernels.triton.launches import default_launches
    from tests.device.clock import Clock
    from tests.device.speed import copy_gbps, time_attention, time_steps, time_swaps

    is_cuda = device.type == "cuda"
    clock, sizes = Clock(device, 20 if is_cuda else 1), _sizes(device)
    dtype = torch.bfloat16 if is_cuda else torch.float32
    yield (copied := copy_gbps(device, clock, sizes.copied_bytes))
    choose = _tuned(device) if is_cuda else default_launches
    for part in (
        time_attention(sizes, dtype, device, clock, choose, copied.rate),
        time_steps(sizes, dtype, device, clock, copied.rate),
        time_swaps(sizes, dtype, device, clock),
    ):
        try:
            for timing in part:
                yield timing
                if time.monotonic() > deadline:
                    print("out of time: the rest is left out", flush=True)
                    return
        except Exception:  # noqa: BLE001  the other parts are wanted all the same
            traceback.print_exc()


def _tuned(device: "torch.device") -> "abc.Callable[..., object]":
    from functools import partial

    from engine.kernels.cpu.disk_cache import cache_folder
    from engine.kernels.triton.tuning import tuned_launches

    return partial(tuned_launches, device=device, folder=cache_folder(os.environ))


def _sizes(device: "torch.device") -> "Sizes":
    import torch

    from tests.device.models import LLAMA_8B, SMOLLM2_135M, TINY
    from tests.device.speed import Sizes

    if device.type != "cuda":
        return Sizes(1 << 16, ((2, 40),), ((3, 5),), {"tiny": (TINY, (1, 2), 8)}, 3, 4)
    rows = (1, 8, 32, 64, 128)
    properties = torch.cuda.get_device_properties(device)
    models = {"SmolLM2-135M": (SMOLLM2_135M, rows, 512)}
    if properties.total_memory > 40 << 30:
        models["Llama-8B"] = (LLAMA_8B, rows, 1024)
    loads = ((1, 8192), (8, 8192), (32, 4096), (128, 4096))
    prompts = ((0, 2048), (6144, 2048))
    return Sizes(2 << 30, loads, prompts, models, 128, properties.multi_processor_count)


def _print_table(checks: abc.Sequence["Check"], timings: abc.Sequence["Timing"]) -> None:
    print("\n| kernel | case | error | allowed | |\n|---|---|---|---|---|")
    for check in checks:
        mark = "ok" if check.holds else "WRONG"
        print(f"| {check.kernel} | {check.case} | {check.error:.2g} | {check.tolerance:.2g} | {mark} |")
    print("\n| what | case | ms | rate | of the limit |\n|---|---|---|---|---|")
    for timing in timings:
        part = "" if timing.part is None else f"{timing.part:.0%}"
        print(
            f"| {timing.name} | {timing.case} | {timing.milliseconds:.3f} | {timing.rate:,.0f} {timing.unit} | {part} |"
        )


if __name__ == "__main__":
    sys.exit(main())
