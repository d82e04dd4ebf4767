"""Traffic that cannot be had.

SimulationError
├── TraceError          a file cannot be read as a trace; says file and line
└── TrafficSpecError    words on the command line describe no traffic
"""

from pathlib import Path

from engine.sim.errors import SimulationError


class TraceError(SimulationError):
    """`path` at `line` (counted from 1; None where the whole file is meant) is not what its format says."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if line is None else f"{path}:{line}: {problem}")
        self.path = path
        self.line = line


class TrafficSpecError(SimulationError):
    """`spec` is what was given; empty where something is missing."""

    def __init__(self, spec: str, problem: str) -> None:
        super().__init__(f"{spec!r}: {problem}" if spec else problem)
        self.spec = spec
