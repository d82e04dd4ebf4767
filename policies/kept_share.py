"""The part of the service that is kept for a class whatever the ranks say: its `min_share`."""

from dataclasses import dataclass

from engine.core.types import PriorityClass


@dataclass(slots=True)
class KeptShare:
    """What the kept share of a class still owes it, in cost units: `lag`, from -window to window.

    The window bounds what a class can save up while others are served, and how long it pays for what it got alone.
    """

    window: float
    lag: float = 0.0

    def lag_after(self, definition: PriorityClass, cost: float) -> float:
        """The lag once all classes together were served `cost` more, the class's own service left out."""
        return min(self.window, self.lag + definition.min_share * cost)

    def is_short(self, definition: PriorityClass, cost: float = 0.0) -> bool:
        """True if the class would be owed something after that."""
        return definition.min_share > 0 and self.lag_after(definition, cost) > 0

    def accrue(self, definition: PriorityClass, cost: float) -> None:
        """All classes together were served `cost`."""
        self.lag = self.lag_after(definition, cost)

    def spend(self, cost: float) -> None:
        """`cost` of that was the class's own."""
        self.lag = max(-self.window, self.lag - cost)

    def forget_credit(self) -> None:
        """The class wants nothing: idling earns no credit."""
        self.lag = min(0.0, self.lag)
