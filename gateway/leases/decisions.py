"""Whether a request gets what it asks for: from what is held here, from the store's answer, or alone in an outage.

Functions over parts; they charge what they grant and nothing else. Binding limits are all or none. Limits in SHADOW are
all or none among themselves, and refuse nobody.
"""

from collections import abc
from dataclasses import dataclass

from gateway.errors import StoreUnavailableError
from gateway.leases.claims import Claim, Outage, Part, Request
from gateway.leases.terms import NS_PER_S
from gateway.quota_terms import Denied, Limit, Mode, Violation, ViolationKind

FRESH_NS = NS_PER_S // 10
"""A refusal that follows from what the store said so recently needs no second turn."""


@dataclass(frozen=True, slots=True)
class Granted:
    """`charged` limits were charged, `shadow_violations` were not."""

    charged: tuple[Limit, ...]
    shadow_violations: tuple[Violation, ...] = ()


def decide(request: Request, now_ns: int) -> Granted | Denied | Claim:
    """By what is held and known here; a claim where that does not settle it."""
    held, lacking = _split(request.parts, now_ns)
    needed = tuple(part for part in lacking if not part.is_shadow)
    shadow = tuple(part for part in lacking if part.is_shadow)
    if (violations := _known_violations(needed, now_ns)) is not None:
        return Denied(violations)
    shadow_violations = _known_violations(shadow, now_ns) or ()
    if shadow_violations:
        held, shadow = tuple(part for part in held if not part.is_shadow), ()
    if not needed and not shadow:
        for part in held:
            part.share.take(part.amount, now_ns)
        return _granted(request, shadow_violations, now_ns)
    for part in held:
        part.share.hold(part.amount, now_ns)
    for part in (*needed, *shadow):
        part.share.note_claim(part.amount, now_ns)
    return Claim(request, held, needed, shadow)


def decide_alone(request: Request, outage: Outage, now_ns: int) -> Granted | Denied:
    """While the store does not answer. Shadows that need it are passed over. Raises StoreUnavailableError."""
    held, lacking = _split(request.parts, now_ns)
    needed = tuple(part for part in lacking if not part.is_shadow)
    if needed and not outage.num_replicas:
        raise StoreUnavailableError
    found = (part.share.find_violation_alone(part.amount, outage, now_ns) for part in needed)
    if violations := tuple(violation for violation in found if violation is not None):
        return Denied(violations)
    for part in held:
        part.share.take(part.amount, now_ns)
    for part in needed:
        part.share.charge_alone(part.amount, outage, now_ns)
    passed_over = {part.limit.key for part in lacking if part.is_shadow}
    return Granted(tuple(limit for limit in request.limits if limit.key not in passed_over))


def find_violations(parts: abc.Iterable[Part], outage: Outage | None, now_ns: int) -> tuple[Violation, ...]:
    """What `decide` or, in an outage, `decide_alone` would refuse, by what is known here. Nothing is charged.

    Raises StoreUnavailableError.
    """
    if outage is None:
        found = [part.share.find_violation(part.amount, now_ns) for part in parts]
    else:
        _, lacking = _split(parts, now_ns)
        if lacking and not outage.num_replicas:
            raise StoreUnavailableError
        found = [part.share.find_violation_alone(part.amount, outage, now_ns) for part in lacking]
    return tuple(violation for violation in found if violation is not None)


def finish(claim: Claim, now_ns: int, *, is_granted: bool, is_shadow_granted: bool) -> Granted | tuple[Violation, ...]:
    """By the store's answer: what is charged, or the violations that still stand (none: try again)."""
    for part in (*(claim.needed if is_granted else ()), *(claim.shadow if is_shadow_granted else ())):
        part.share.spend_claimed(part.amount)
    if not is_granted:
        claim.undo()
        give_back(claim.shadow if is_shadow_granted else (), now_ns)
        found = (part.share.find_violation(part.amount, now_ns) for part in claim.needed)
        return tuple(violation for violation in found if violation is not None)
    shadow_violations: tuple[Violation, ...] = ()
    if not is_shadow_granted:
        found = (part.share.find_violation(part.amount, now_ns) for part in claim.shadow)
        # What was refused and would not be any more was refused all the same.
        shadow_violations = tuple(v or _momentary(p) for v, p in zip(found, claim.shadow, strict=True))
    for part in claim.held:
        part.share.unhold(part.amount, is_spent=is_shadow_granted or not part.is_shadow)
    claim.held = ()
    return _granted(claim.request, shadow_violations, now_ns)


def give_back(parts: abc.Iterable[Part], now_ns: int) -> None:
    """What was charged is not used."""
    for part in parts:
        part.share.settle(part.amount, 0, part.limit, now_ns)


def give_back_all(claim: Claim, now_ns: int, *, is_granted: bool, is_shadow_granted: bool) -> None:
    """Nobody waits for the claim any more, or it comes too late."""
    claim.undo()
    granted = (*(claim.needed if is_granted else ()), *(claim.shadow if is_shadow_granted else ()))
    for part in granted:
        part.share.spend_claimed(part.amount)
    give_back(granted, now_ns)


def momentary(parts: abc.Iterable[Part]) -> Denied:
    """The store refused these, and by what is known now would not: come back at once."""
    return Denied(tuple(_momentary(part) for part in parts))


def _momentary(part: Part) -> Violation:
    if part.limit.is_rate:
        return Violation(part.limit, ViolationKind.RATE, FRESH_NS)
    kind = ViolationKind.BUDGET if part.limit.is_budget else ViolationKind.CONCURRENCY
    return Violation(part.limit, kind, None)


def _split(parts: abc.Iterable[Part], now_ns: int) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """What is held here, and what is not."""
    held: list[Part] = []
    lacking: list[Part] = []
    for part in parts:
        (held if part.share.available(now_ns) >= part.amount else lacking).append(part)
    return tuple(held), tuple(lacking)


def _known_violations(parts: abc.Sequence[Part], now_ns: int) -> tuple[Violation, ...] | None:
    """Every violation, if there is one and what is known is enough to name them all; else None."""
    found = tuple(part.share.find_violation(part.amount, now_ns) for part in parts)
    violations = tuple(violation for violation in found if violation is not None)
    if any(violation.kind is ViolationKind.EXCEEDS_BURST for violation in violations):
        return violations
    is_known = all(part.share.seen_since(now_ns - FRESH_NS) for part in parts)
    return violations if violations and is_known else None


def _granted(request: Request, shadow_violations: tuple[Violation, ...], now_ns: int) -> Granted:
    """Charged are all limits, but for the shadows where one refused; an extension of them is owed all the same."""
    if not shadow_violations:
        return Granted(request.limits)
    if request.is_extension:
        for part in request.parts:
            if part.is_shadow:
                part.share.settle(0, part.amount, part.limit, now_ns)
        return Granted(request.limits, shadow_violations)
    return Granted(tuple(limit for limit in request.limits if limit.mode is not Mode.SHADOW), shadow_violations)
