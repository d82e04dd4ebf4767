"""Seeded traffic from a line of words, as in
`tenants=10000,zipf=1,rate=8,prompt=lognormal:1000:0.8,output=lognormal:200:1,requests=1000000`, or the same as JSON.

    tenants, zipf    how many, and how unequal: the k-th sends 1/k^zipf of what the first one sends (0: all alike)
    org, tenant      their organization; the name of the one tenant
    arrivals         poisson (default) · every: equal gaps · onoff:ON_S:OFF_S: Poisson while on · salvo: all at `start`
    rate             requests per second, of all together (while on)
    prompt, output   lengths, see `lengths.py`
    requests, seconds   where it ends; at least one of them
    start            seconds before the first one
    class            priority class
    prefix           each prompt begins with so many tokens that are the tenant's own, counted as part of it
    cancel           SHARE:SECONDS: that share of the clients gives up after so long
    deadline         seconds after arrival
    seed             of all that is drawn
"""

import math
from collections import abc
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from engine.sim.json_text import is_text, parse_json
from engine.sim.traffic.errors import TrafficSpecError
from engine.sim.traffic.lengths import Lengths, parse_lengths
from engine.sim.traffic.row import DEFAULT_CLASS, MAX_SPAN_S, MAX_TOKENS, NANOS_PER_S, Arrival
from engine.sim.traffic.trace import Trace

BATCH = 4096
MIN_RATE, MAX_RATE = 1e-9, 1e9  # per second
MAX_ZIPF = 10
MIN_ON_S = 1e-6
MAX_TENANTS = 1_000_000
DEFAULT_LENGTHS = parse_lengths("128")
WHOLE_NUMBERS = ("tenants", "requests", "prefix", "seed")
NUMBERS = ("zipf", "rate", "seconds", "start", "deadline")
LENGTHS = ("prompt", "output")
TEXTS = ("org", "tenant")
NAMES = (*WHOLE_NUMBERS, *NUMBERS, *LENGTHS, *TEXTS, "class", "cancel", "arrivals")


@dataclass(frozen=True, slots=True)
class GeneratorSpec:
    """See the module's docstring; times in seconds."""

    tenants: int = 1
    zipf: float = 0.0
    org: str = "generated"
    tenant: str | None = None
    arrivals: str = "poisson"
    rate: float = 1.0
    prompt: Lengths = DEFAULT_LENGTHS
    output: Lengths = DEFAULT_LENGTHS
    requests: int | None = None
    seconds: float | None = None
    start: float = 0.0
    priority_class: str = DEFAULT_CLASS
    prefix: int = 0
    cancel_share: float = 0.0
    cancel_after: float = 0.0
    deadline: float | None = None
    on_s: float = 0.0
    off_s: float = 0.0
    seed: int = 0


def parse_generator(text: str, seed: int = 0) -> GeneratorSpec:
    """The specification in `text`; `seed` where it names none. Raises TrafficSpecError."""
    if not is_text(text):
        raise TrafficSpecError(text, "this is not text")
    values = _words(text)
    spec = GeneratorSpec(seed=seed)
    for name, word in values.items():
        try:
            spec = replace(spec, **_field(name, word))
        except KeyError:
            raise TrafficSpecError(text, f"there is no {name!r}; there are {', '.join(NAMES)}") from None
        except ValueError:
            raise TrafficSpecError(text, f"{name}={word} is not understood") from None
    return _checked(text, spec)


def generate(spec: GeneratorSpec) -> Trace:
    """Its traffic."""
    return Trace(spec.tenant or spec.org, lambda: _arrivals(spec))


def _words(text: str) -> dict[str, str]:
    if text.lstrip().startswith("{"):
        try:
            return {str(name): str(value) for name, value in parse_json(text).items()}
        except ValueError as error:
            raise TrafficSpecError(text, str(error)) from error
    pairs = [word.partition("=") for word in text.split(",") if word.strip()]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise TrafficSpecError(text, f"{wrong[0]!r} must be NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _field(name: str, word: str) -> dict[str, Any]:  # the fields have many types
    """The fields that one word sets. Raises KeyError for an unknown name, ValueError for a value that is none."""
    if name in WHOLE_NUMBERS:
        return {name: int(word)}
    if name in NUMBERS:
        return {name: float(word)}
    if name in LENGTHS:
        return {name: parse_lengths(word)}
    if name in TEXTS:
        return {name: word}
    if name == "class":
        return {"priority_class": word}
    if name == "cancel":
        share, after = word.split(":")
        return {"cancel_share": float(share), "cancel_after": float(after)}
    if name == "arrivals":
        kind, *times = word.split(":")
        if kind not in ("poisson", "every", "salvo", "onoff") or len(times) != (2 if kind == "onoff" else 0):
            raise ValueError(word)
        on_s, off_s = (float(time) for time in times or ("0", "0"))
        return {"arrivals": kind, "on_s": on_s, "off_s": off_s}
    raise KeyError(name)


def _checked(text: str, spec: GeneratorSpec) -> GeneratorSpec:
    numbers = [value for field in fields(spec) if isinstance(value := getattr(spec, field.name), int | float)]
    if not all(0 <= number < math.inf for number in numbers):
        raise TrafficSpecError(text, "its numbers must be finite and not negative")
    _check_limits(text, spec)
    if spec.requests is None and (spec.seconds is None or spec.arrivals == "salvo"):
        raise TrafficSpecError(text, "it never ends: give requests=N or seconds=S")
    if spec.arrivals == "onoff" and spec.on_s < MIN_ON_S:
        raise TrafficSpecError(text, "the time that it is on must be a microsecond or more")
    if spec.cancel_share > 1:
        raise TrafficSpecError(text, "the share that is cancelled lies within 0 and 1")
    if not all((spec.org if spec.tenant is None else spec.tenant).split("/")) or not spec.org:
        raise TrafficSpecError(text, "org and tenant are names, or paths like organization/team")
    if spec.tenant is not None and spec.tenants > 1:
        raise TrafficSpecError(text, "one name is not enough for several tenants; use org")
    return spec


def _check_limits(text: str, spec: GeneratorSpec) -> None:
    """What is beyond them would leave 64 bits, or never end."""
    if not 1 <= spec.tenants <= MAX_TENANTS:
        raise TrafficSpecError(text, f"it needs 1 to {MAX_TENANTS} tenants")
    if not MIN_RATE <= spec.rate <= MAX_RATE:
        raise TrafficSpecError(text, f"it needs a rate from {MIN_RATE:g} to {MAX_RATE:g} per second")
    if spec.zipf > MAX_ZIPF or spec.prefix > MAX_TOKENS:
        raise TrafficSpecError(text, f"zipf is at most {MAX_ZIPF}, a prefix at most {MAX_TOKENS:,} tokens")
    if max(spec.seconds or 0, spec.start, spec.cancel_after, spec.deadline or 0, spec.on_s, spec.off_s) > MAX_SPAN_S:
        raise TrafficSpecError(text, "its times are at most ten years")


def _arrivals(spec: GeneratorSpec) -> abc.Iterator[Arrival]:
    names = _tenant_names(spec)
    popularity = np.cumsum(1.0 / np.arange(1, spec.tenants + 1) ** spec.zipf)
    popularity /= popularity[-1]
    generator = np.random.default_rng(spec.seed)
    end_ns = math.inf if spec.seconds is None else round((spec.start + spec.seconds) * NANOS_PER_S)
    left = math.inf if spec.requests is None else spec.requests
    arrive = _arrival_maker(spec, names)
    for times in _time_batches(spec, generator):
        tenants = np.searchsorted(popularity, generator.random(BATCH), side="right").tolist()
        prompts = spec.prompt.draw(generator, BATCH).tolist()
        outputs = spec.output.draw(generator, BATCH).tolist()
        is_cancelled = (generator.random(BATCH) < spec.cancel_share).tolist()
        for at_ns, *drawn in zip(times, tenants, prompts, outputs, is_cancelled, strict=True):
            if at_ns >= end_ns or left <= 0:
                return
            if at_ns > MAX_SPAN_S * NANOS_PER_S:
                raise TrafficSpecError(spec.tenant or spec.org, "its requests go on for more than ten years")
            left -= 1
            yield arrive(at_ns, *drawn)


def _arrival_maker(spec: GeneratorSpec, names: list[str]) -> abc.Callable[[int, int, int, int, bool], Arrival]:
    """Makes an arrival of its time, tenant number, prompt and output length, and whether its client gives up."""
    cancel_ns = round(spec.cancel_after * NANOS_PER_S)
    deadline_ns = None if spec.deadline is None else round(spec.deadline * NANOS_PER_S)

    def arrive(at_ns: int, tenant: int, prompt: int, output: int, gives_up: bool) -> Arrival:
        return Arrival(
            at_ns,
            names[tenant],
            max(prompt, spec.prefix + 1) if spec.prefix else prompt,
            output,
            spec.priority_class,
            (tenant,) if spec.prefix else (),
            spec.prefix,
            cancel_ns if gives_up else None,
            deadline_ns,
        )

    return arrive


def _tenant_names(spec: GeneratorSpec) -> list[str]:
    if spec.tenant is not None:
        return [spec.tenant if "/" in spec.tenant else f"{spec.org}/{spec.tenant}"]
    width = len(str(spec.tenants))
    return [f"{spec.org}/t{number:0{width}d}" for number in range(1, spec.tenants + 1)]


def _time_batches(spec: GeneratorSpec, generator: np.random.Generator) -> abc.Iterator[list[int]]:
    """Times in nanoseconds, for ever. On/off: the gaps of a Poisson process that runs while the source is on."""
    elapsed = 0.0
    while True:
        if spec.arrivals == "poisson" or spec.arrivals == "onoff":
            gaps = generator.exponential(1 / spec.rate, BATCH)
        else:
            gaps = np.full(BATCH, 1 / spec.rate if spec.arrivals == "every" else 0.0)
        ends = elapsed + np.cumsum(gaps)
        elapsed = float(ends[-1])
        times = ends - gaps[0] if spec.arrivals == "every" else ends
        if spec.arrivals == "onoff":
            times = times + np.floor(times / spec.on_s) * spec.off_s
        # Later than the end is late enough: more would leave 64 bits.
        seconds = np.minimum(spec.start + times, MAX_SPAN_S + 1)
        yield np.rint(seconds * NANOS_PER_S).astype(np.int64).tolist()
