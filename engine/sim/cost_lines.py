"""How long a step takes in virtual time: by a named line, or by a file that `evenflow profile` wrote.

Whole picoseconds inside, so that the time of many steps is the sum of their times on every machine, however it is
added up. The scheduler itself gets the same line as `Prices`.
"""

import math
from collections import abc
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from engine.core.costs import Prices, StepCosts, num_chunk_keys
from engine.core.plan import CopyDirection, StepPlan
from engine.sim.errors import CostLineError
from engine.sim.json_text import read_json

PS_PER_NS = 1000
MS = 1e6
MAX_COEFFICIENT_NS = 1e15  # eleven days; times that are sums of such numbers are found out as they get too large
COPY_FIELDS = ("copy_out_block_ns", "copy_in_block_ns", "copy_launch_ns")


@dataclass(frozen=True, slots=True)
class CostLine:
    """Prices of steps and copies, and what engines that prefill apart from decoding pay besides.

    decode_base_ns   of a step with at least one decode, beside the base of every step
    admission_ns     of each sequence that takes a row

    Raises CostLineError where a coefficient is negative or above MAX_COEFFICIENT_NS.
    """

    name: str
    prices: Prices
    decode_base_ns: float = 0.0
    admission_ns: float = 0.0

    def __post_init__(self) -> None:
        for field, value in self.coefficients().items():
            if not 0 <= value < math.inf:
                raise CostLineError(f"{self.name}: {field} must be finite and at least 0, not {value}")
            if value > MAX_COEFFICIENT_NS:
                raise CostLineError(f"{self.name}: {field} must be at most {MAX_COEFFICIENT_NS:g} ns, not {value:g}")

    def coefficients(self) -> dict[str, float]:
        """Every number of the line by name, in nanoseconds."""
        prices = {name: getattr(self.prices, name) for name in COPY_FIELDS}
        own = {"decode_base_ns": self.decode_base_ns, "admission_ns": self.admission_ns}
        return {**asdict(self.prices.step), **prices, **own}

    def scaled(self, factor: float) -> "CostLine":
        """The same line, `factor` times as slow."""
        return from_coefficients(self.name, {name: value * factor for name, value in self.coefficients().items()})

    def scheduler_prices(self) -> Prices:
        """The line as the scheduler knows it: it has one base for all steps."""
        step = self.prices.step
        step = replace(step, base_ns=step.base_ns + self.decode_base_ns)
        return replace(self.prices, step=step, are_measured=True)


class StepTimes:
    """The arithmetic of one cost line."""

    def __init__(self, line: CostLine) -> None:
        step = line.prices.step
        self._base = _ps(step.base_ns)
        self._decode_base = _ps(line.decode_base_ns)
        self._admission = _ps(line.admission_ns)
        self._prefill_token, self._prefill_key = _ps(step.prefill_token_ns), _ps(step.prefill_key_ns)
        self._decode, self._decode_key = _ps(step.decode_ns), _ps(step.decode_key_ns)
        self._copied_block = _ps(step.copied_block_ns)
        self._copy_block = {
            CopyDirection.OUT: _ps(line.prices.copy_out_block_ns),
            CopyDirection.IN: _ps(line.prices.copy_in_block_ns),
        }
        self._copy_launch = _ps(line.prices.copy_launch_ns)

    def step_ns(self, plan: StepPlan) -> int:
        """The time from the start of `plan` to its output, at least one nanosecond."""
        num_decodes = plan.num_tokens.count(1)
        total = self._base + len(plan.started) * self._admission
        if num_decodes:
            total += self._decodes(num_decodes, sum(plan.starts[:num_decodes]) + num_decodes)
        for start, num_tokens in zip(plan.starts[num_decodes:], plan.num_tokens[num_decodes:], strict=True):
            total += num_tokens * self._prefill_token + num_chunk_keys(start, num_tokens) * self._prefill_key
        for copy in plan.copies:
            total += len(copy.device_block_ids) * self._copied_block
        return max(1, total // PS_PER_NS)

    def decode_step_ns(self, num_decodes: int, num_context_tokens: int) -> int:
        """The time of a step of decodes only, which read `num_context_tokens` keys, their own included."""
        total = self._base + self._decode_base + num_decodes * self._decode + num_context_tokens * self._decode_key
        return total // PS_PER_NS or 1

    def copy_ns(self, direction: CopyDirection, num_blocks: int) -> int:
        """The time that a copy keeps its direction of the link busy, at least one nanosecond."""
        return max(1, (self._copy_launch + num_blocks * self._copy_block[direction]) // PS_PER_NS)

    def _decodes(self, num_decodes: int, num_context_tokens: int) -> int:
        return self._decode_base + num_decodes * self._decode + num_context_tokens * self._decode_key


def load_cost_line(name: str) -> CostLine:
    """The line of that name, or of the JSON file at that path. Raises CostLineError, naming the file."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    path = Path(name)
    try:
        content = read_json(path)
    except OSError as error:
        known = ", ".join(BUILT_IN)
        raise CostLineError(f"there is no cost line {name}, and no such file; built in are: {known}") from error
    except ValueError as error:
        raise CostLineError(f"{name}: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("coefficients"), dict):
        raise CostLineError(f"{name}: it has no object `coefficients`")
    title = content.get("name", path.stem)
    if not isinstance(title, str) or not title.isprintable():
        raise CostLineError(f"{name}: the line's name must be text of one line, not {title!r}")
    try:
        return from_coefficients(title, content["coefficients"])
    except CostLineError as error:
        raise CostLineError(f"{name}: {error}") from error


def from_coefficients(name: str, values: abc.Mapping[str, object]) -> CostLine:
    """The inverse of `coefficients`; what is left out is 0. Raises CostLineError where one is unknown or no number."""
    known = _ZERO.coefficients()
    for field in values:
        if field not in known:
            raise CostLineError(f"{name}: there is no coefficient {field}; known are: {', '.join(known)}")
    numbers = {**known, **{field: _ns(name, field, value) for field, value in values.items()}}
    step = StepCosts(**{field.name: numbers.pop(field.name) for field in fields(StepCosts)})
    own = {field: numbers.pop(field) for field in ("decode_base_ns", "admission_ns")}
    out_ns, in_ns, launch_ns = (numbers[field] for field in COPY_FIELDS)
    return CostLine(name, Prices(step, out_ns, in_ns, launch_ns), **own)


def _ns(name: str, field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CostLineError(f"{name}: {field} must be a number, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise CostLineError(f"{name}: {field} is too large") from None


def _ps(ns: float) -> int:
    return round(ns * PS_PER_NS)


_ZERO = CostLine(
    "zero",
    Prices(StepCosts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0), copy_out_block_ns=0.0, copy_in_block_ns=0.0, copy_launch_ns=0.0),
)

# Llama-2-7b on an A10G with 24 GB: decode 14.3 ms + 0.2715 ms a sequence + 0.0024 ms a context token, prefill 0.214 ms
# a token, 5 ms an admission. By hand from four points of the VTC artifact's profile (Sheng et al. 2024). Copies: 512
# KiB a token over 16 lanes of PCIe 4 at 20 GB/s, blocks of 16 tokens.
A10G = CostLine(
    "a10g",
    Prices(
        StepCosts(prefill_token_ns=0.214 * MS, decode_ns=0.2715 * MS, decode_key_ns=0.0024 * MS),
        copy_out_block_ns=0.42 * MS,
        copy_in_block_ns=0.42 * MS,
        copy_launch_ns=0.02 * MS,
    ),
    decode_base_ns=14.3 * MS,
    admission_ns=5.0 * MS,
)

# A model of 135 million parameters on two cores: 6 ms + 0.6 ms a prompt token + 3.5 ms a decode. Copies: 45 KiB a token
# at 5 GB/s, which slow the step down by as much.
CPU = CostLine(
    "cpu",
    Prices(
        StepCosts(base_ns=6 * MS, prefill_token_ns=0.6 * MS, decode_ns=3.5 * MS, copied_block_ns=0.07 * MS),
        copy_out_block_ns=0.15 * MS,
        copy_in_block_ns=0.15 * MS,
        copy_launch_ns=0.02 * MS,
    ),
)

BUILT_IN = {line.name: line for line in (A10G, CPU)}
