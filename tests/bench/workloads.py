"""The workloads W1-W5 on which engines are compared, as token ids: the same for every engine, on every Python.

Prompts are random ordinary tokens, so that nothing is shared by accident, and output lengths are exact, because engines
are told to ignore the end of a sequence. Each repetition has other tokens in the same shapes, so that none finds what
the one before left in a cache.
"""

import math
import random
from collections import abc
from dataclasses import dataclass, replace

SEED = 20260131
FIRST_TOKEN, LAST_TOKEN = 1000, 48000  # of the default model's 49,152, past those with a meaning


@dataclass(frozen=True, slots=True)
class Row:
    """A request: sent `arrival_s` after the start."""

    prompt: tuple[int, ...]
    num_output: int
    tenant: str = "A"
    arrival_s: float = 0.0

    def as_json(self) -> dict[str, object]:
        return {
            "prompt": self.prompt,
            "num_output": self.num_output,
            "tenant": self.tenant,
            "arrival_s": self.arrival_s,
        }


def w1(num_requests: int = 64) -> list[Row]:
    """Mixed lengths, all at once: prompts around 128 tokens, outputs around 64, both lognormal."""
    rng = random.Random(f"{SEED}-w1")
    return [Row(_tokens(rng, _length(rng, 128, 16, 512)), _length(rng, 64, 8, 256)) for _ in range(num_requests)]


def w2(batch: int, num_output: int = 128) -> list[Row]:
    """Decoding: short prompts, all outputs equally long."""
    rng = random.Random(f"{SEED}-w2-{batch}")
    return [Row(_tokens(rng, 32), num_output) for _ in range(batch)]


def w3(num_requests: int = 16, num_tokens: int = 1024) -> list[Row]:
    """Prompts only."""
    rng = random.Random(f"{SEED}-w3")
    return [Row(_tokens(rng, num_tokens), 1) for _ in range(num_requests)]


def w4(num_long: int = 24, num_short: int = 30) -> list[Row]:
    """Tenant A floods at the start; tenant B sends a short request each second."""
    rng = random.Random(f"{SEED}-w4")
    rows = [Row(_tokens(rng, 1024), 256) for _ in range(num_long)]
    return rows + [Row(_tokens(rng, 32), 16, "B", second + 1.0) for second in range(num_short)]


def w5(num_requests: int = 32) -> list[Row]:
    """One common beginning of 512 tokens, and 32 of each request's own."""
    rng = random.Random(f"{SEED}-w5")
    common = _tokens(rng, 512)
    return [Row(common + _tokens(rng, 32), 32) for _ in range(num_requests)]


def repetition(rows: abc.Sequence[Row], number: int) -> list[Row]:
    """The same shapes in other tokens; what was common stays common."""
    other = list(range(FIRST_TOKEN, LAST_TOKEN))
    random.Random(f"reseed-{number}").shuffle(other)
    return [replace(row, prompt=tuple(other[token - FIRST_TOKEN] for token in row.prompt)) for row in rows]


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(count))


def _length(rng: random.Random, median: int, least: int, most: int) -> int:
    return max(least, min(most, round(math.exp(rng.gauss(math.log(median), 0.8)))))
