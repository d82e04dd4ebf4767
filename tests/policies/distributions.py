"""Distributions of strangers: one that is really installed, and one with every fault that a loader can meet."""

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "stranger"

FAULTY_MODULE = '''
class Sound:
    """Has every method and an option of every type."""

    def __init__(self, *, patience: int = 0, reverse: bool = False, label: str = "", factor: float = 1.0):
        if patience < 0:
            raise ValueError("patience must be at least 0")
        self.options = (patience, reverse, label, factor)

    def on_arrive(self, seq, now): ...
    def on_leave(self, seq, reason, now): ...
    def begin(self, start): ...
    def select(self, passed): ...
    def key(self, seq): ...
    def concede(self, victim, claimant): ...
    def charge(self, service): ...
    def standing(self, flow): ...
    def snapshot(self): ...
    def restore(self, snapshot): ...


class Untyped(Sound):
    def __init__(self, *, patience=0):
        super().__init__()


class Incomplete:
    def select(self, passed):
        return None


def a_function():
    return Sound()
'''

FAULTY_ENTRY_POINTS = """
[evenflow.scheduling_policies]
sound = faulty_policies:Sound
untyped = faulty_policies:Untyped
incomplete = faulty_policies:Incomplete
function = faulty_policies:a_function
missing_module = stranger_that_is_not_there:Policy
missing_class = faulty_policies:NoSuchPolicy

[evenflow.preemption_policies]
incomplete = faulty_policies:Incomplete
"""


def install_stranger(path: Path, scratch: Path) -> None:
    """Build the stranger's package from its source, as its owner would, and install it into `path`."""
    source = shutil.copytree(SOURCE, scratch / "source")  # the build leaves files beside it
    options = ("--quiet", "--no-index", "--no-build-isolation", "--no-deps", "--disable-pip-version-check")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(path), str(source)], check=True, timeout=60
    )


def add_distribution(path: Path, name: str, entry_points: str) -> None:
    """Put a distribution's metadata into `path`, as an installer would."""
    info = path / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def install_faulty(path: Path) -> None:
    """Put the faulty distribution, module and metadata, into `path`."""
    (path / "faulty_policies.py").write_text(FAULTY_MODULE)
    add_distribution(path, "faulty", FAULTY_ENTRY_POINTS)
