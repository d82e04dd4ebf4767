"""How every benchmark reports: a table for people, JSON for tools, the machine beside the numbers."""

import argparse
import json
import os
import platform
import statistics
from collections import abc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result here")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, one repetition: for trying, never for quoting"
    )
    return parser


def machine() -> dict[str, Any]:
    """What the numbers were taken on."""
    model_names = [
        line.split(":", 1)[1].strip()
        for line in (Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else [])
        if line.startswith("model name")
    ]
    return {
        "cpu": model_names[0] if model_names else platform.processor(),
        "cores": os.cpu_count(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


@dataclass
class Report:
    """Collects one sample per metric and repetition, in the order of the repetitions."""

    name: str
    config: abc.Mapping[str, Any]
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, **metrics: float) -> None:
        for key, value in metrics.items():
            self.samples.setdefault(key, []).append(value)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "metrics": {key: statistics.median(values) for key, values in self.samples.items()},
            "config": dict(self.config),
            "machine": machine(),
            "runs": max((len(values) for values in self.samples.values()), default=0),
            "spread": {key: [min(values), max(values)] for key, values in self.samples.items()},
        }

    def publish(self, path: Path | None) -> None:
        """Print the table and, if asked, write the JSON."""
        result = self.as_json()
        table = Table(title=f"{self.name}  ({result['runs']} runs)", title_justify="left")
        for column in ("metric", "median", "min", "max"):
            table.add_column(column, justify="left" if column == "metric" else "right")
        for key, median in result["metrics"].items():
            low, high = result["spread"][key]
            table.add_row(key, f"{median:,.3f}", f"{low:,.3f}", f"{high:,.3f}")
        console = Console()
        console.print(table)
        console.print({"config": result["config"], "machine": result["machine"]})
        if path is not None:
            path.write_text(json.dumps(result, indent=2) + "\n")
