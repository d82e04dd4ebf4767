"""A distribution of a stranger: two policies that nothing of ours imports, found like our own."""

from pathlib import Path

MODULE = '''
class NewestFirst:
    """Last come, first served."""

    def __init__(self, *, patience: int = 0, reverse: bool = False, label: str = "", factor: float = 1.0):
        if patience < 0:
            raise ValueError("patience must be at least 0")
        self.options = (patience, reverse, label, factor)
        self.waiting = {}

    def on_arrive(self, seq, now):
        self.waiting[seq.arrival_index] = seq

    def on_leave(self, seq, reason, now):
        self.waiting.pop(seq.arrival_index, None)

    def select(self, now):
        return self.waiting[max(self.waiting)] if self.waiting else None

    def key(self, seq):
        return (-seq.arrival_index,)

    def charge(self, service):
        pass

    def standing(self):
        return {}

    def snapshot(self):
        return b"newest_first"

    def restore(self, snapshot):
        if snapshot != b"newest_first":
            raise ValueError("not a snapshot of newest_first")


class MostComputed:
    """The sequence that has computed most loses its blocks."""

    def victims(self, resident, claimant, standing, now):
        return iter(sorted(resident, key=lambda seq: (-seq.num_computed_tokens, seq.arrival_index)))


class Untyped(NewestFirst):
    def __init__(self, *, patience=0):
        super().__init__()


class Incomplete:
    def select(self, now):
        return None


def a_function():
    return NewestFirst()
'''

ENTRY_POINTS = """
[evenflow.scheduling_policies]
newest_first = stranger_policies:NewestFirst
untyped = stranger_policies:Untyped
incomplete = stranger_policies:Incomplete
function = stranger_policies:a_function
missing_module = stranger_that_is_not_there:Policy
missing_class = stranger_policies:NoSuchPolicy

[evenflow.preemption_policies]
most_computed = stranger_policies:MostComputed
incomplete = stranger_policies:Incomplete
"""


def add_distribution(path: Path, name: str, entry_points: str) -> None:
    """Put a distribution's metadata into `path`, as an installer would."""
    info = path / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def install(path: Path) -> None:
    """Put the stranger's distribution, module and metadata, into `path`."""
    (path / "stranger_policies.py").write_text(MODULE)
    add_distribution(path, "stranger", ENTRY_POINTS)
