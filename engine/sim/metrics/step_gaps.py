"""The longest step since a moment, in logarithmic time: the largest gap between two tokens of a sequence that took
part in every step since its first one."""

from bisect import bisect_right


class StepGaps:
    """A stack of (end of the step, its length) in which each is longer than all that came later."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._lengths: list[int] = []

    def add(self, end_ns: int, step_ns: int) -> None:
        """A step ended, or many of the same length of which this is the last."""
        ends, lengths = self._ends, self._lengths
        while lengths and lengths[-1] <= step_ns:
            lengths.pop()
            ends.pop()
        ends.append(end_ns)
        lengths.append(step_ns)

    def longest_after(self, at_ns: int) -> int:
        """The longest step that ended after `at_ns`; 0 where there is none."""
        place = bisect_right(self._ends, at_ns)
        return self._lengths[place] if place < len(self._lengths) else 0
