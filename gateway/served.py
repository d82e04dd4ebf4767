"""What tenants were served between two looks at the engines, each of which counts from its own start. Pure arithmetic.

Work is in cost units: a prompt token is one, an output token two.
"""

from collections import abc
from dataclasses import dataclass

from gateway.fair_shares import Path


@dataclass(frozen=True, slots=True)
class Served:
    """What one tenant was served, in a while or in a second, by all engines together."""

    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    work: float = 0.0

    @property
    def tokens(self) -> float:
        """Of both kinds."""
        return self.prompt_tokens + self.output_tokens

    def per_second(self, length_s: float) -> "Served":
        """The mean over `length_s`, which is not 0."""
        return Served(self.prompt_tokens / length_s, self.output_tokens / length_s, self.work / length_s)

    def __add__(self, other: "Served") -> "Served":
        return Served(
            self.prompt_tokens + other.prompt_tokens, self.output_tokens + other.output_tokens, self.work + other.work
        )


Totals = abc.Mapping[str, abc.Mapping[Path, Served]]
"""By engine and tenant, since the engine began; of the engines that answered."""


def served_between(before: Totals, after: Totals) -> dict[Path, Served]:
    """By tenant, of those that were served anything.

    It is what the totals rose by, and all that they show where they began anew. An engine that did not answer before
    adds nothing: it may have served that long ago.
    """
    found: dict[Path, Served] = {}
    for address, tenants in after.items():
        earlier = before.get(address)
        if earlier is None:
            continue
        for path, now in tenants.items():
            risen = _risen(earlier.get(path, Served()), now)
            if risen != Served():
                found[path] = found.get(path, Served()) + risen
    return found


def _risen(before: Served, now: Served) -> Served:
    """What was added; a counter that fell has begun anew."""
    if now.prompt_tokens < before.prompt_tokens or now.output_tokens < before.output_tokens:
        return now
    return Served(
        now.prompt_tokens - before.prompt_tokens,
        now.output_tokens - before.output_tokens,
        max(0.0, now.work - before.work),
    )
