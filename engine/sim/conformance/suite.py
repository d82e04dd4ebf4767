"""The checks by name, and the policies that they are run on: loaded by name, with options, as the engine loads them."""

from collections import abc
from functools import partial

from engine.core.policy import PreemptionPolicy, SchedulingPolicy
from engine.plugins import (
    PREEMPTION_GROUP,
    SCHEDULING_GROUP,
    BrokenPolicyError,
    check_pair,
    installed,
    load_preemption_policy,
    load_scheduling_policy,
)
from engine.sim.conformance import leaping, life_cycle, queue_order, traffic, victims
from engine.sim.conformance.report import Check, Report, run

Rule = abc.Callable[[], None]
OnCheck = abc.Callable[[Check], None]

USUAL_VICTIMS = "over_served"  # beside which a scheduling policy is run
USUAL_ORDER = "fcfs"  # beside which a preemption policy is run


def check_policy(
    name: str, options: abc.Mapping[str, str] | None = None, on_check: OnCheck | None = None
) -> tuple[Report, ...]:
    """One report for each group that has a policy `name`. `on_check` hears of each check as it ends.

    Raises PolicyError if there is none, or it has not these options.
    """
    reports = []
    if name in installed(SCHEDULING_GROUP):
        reports.append(check_scheduling_policy(name, options, on_check))
    if name in installed(PREEMPTION_GROUP):
        reports.append(check_preemption_policy(name, options, on_check))
    if not reports:
        load_scheduling_policy(name, {})  # raises, and says what is installed
    return tuple(reports)


def check_scheduling_policy(
    name: str, options: abc.Mapping[str, str] | None = None, on_check: OnCheck | None = None
) -> Report:
    """The suite on a scheduling policy. Raises PolicyError if there is none, or it has not these options."""
    make = partial(load_scheduling_policy, name, options or {})
    if broken := _broken(make, on_check):
        return Report(name, "scheduling", broken)

    def pair() -> tuple[SchedulingPolicy, PreemptionPolicy]:
        return make(), load_preemption_policy(USUAL_VICTIMS, {})

    rules = {title: partial(rule, make) for title, rule in SCHEDULING_RULES.items()} | _traffic_rules(pair)
    return Report(name, "scheduling", _run_all(rules, on_check))


def check_preemption_policy(
    name: str, options: abc.Mapping[str, str] | None = None, on_check: OnCheck | None = None
) -> Report:
    """The suite on a preemption policy. Raises PolicyError if there is none, or it has not these options."""
    make = partial(load_preemption_policy, name, options or {})
    if broken := _broken(make, on_check):
        return Report(name, "preemption", broken)

    def pair() -> tuple[SchedulingPolicy, PreemptionPolicy]:
        policies = load_scheduling_policy(USUAL_ORDER, {}), make()
        check_pair(*policies)
        return policies

    rules = {title: partial(rule, make) for title, rule in PREEMPTION_RULES.items()} | _traffic_rules(pair)
    return Report(name, "preemption", _run_all(rules, on_check))


SCHEDULING_RULES: dict[str, abc.Callable[[queue_order.Make], None]] = {
    "select names the lowest key that waits": queue_order.check_order,
    "asking changes nothing": queue_order.check_purity,
    "keys and standings are finite": queue_order.check_keys,
    "nobody gives way both ways": queue_order.check_concessions,
    "terms are about flows with work": queue_order.check_terms,
    "somebody is selected while somebody waits": queue_order.check_endless_arrivals,
    "cancel works in every state": life_cycle.check_states,
    "whoever comes back is selected": life_cycle.check_returns,
    "it can take over from another policy": life_cycle.check_takeover,
    "a snapshot carries the order over": life_cycle.check_snapshots,
    "foreign snapshots are refused": life_cycle.check_foreign_snapshots,
    "it forgets who is gone": life_cycle.check_memory,
    "a leap is over as many steps as were offered, or fewer": leaping.check_answers,
    "a leap is so many single steps": leaping.check_steps,
}
PREEMPTION_RULES: dict[str, abc.Callable[[victims.Make], None]] = {
    "victims are offered, each once, always the same": victims.check_victims,
    "an iterator may be left unfinished": victims.check_laziness,
    "no offer, no victim": victims.check_no_offer,
    "any standing will do": victims.check_odd_standings,
}


def _broken(make: abc.Callable[[], object], on_check: OnCheck | None) -> tuple[Check, ...]:
    """The one check that fails where the policy cannot even be made."""
    try:
        make()
    except BrokenPolicyError as error:
        check = Check("it can be loaded", str(error))
        if on_check is not None:
            on_check(check)
        return (check,)
    return ()


def _usual_pair() -> tuple[SchedulingPolicy, PreemptionPolicy]:
    return load_scheduling_policy(USUAL_ORDER, {}), load_preemption_policy(USUAL_VICTIMS, {})


def _traffic_rules(pair: traffic.Policies) -> dict[str, Rule]:
    rules: dict[str, Rule] = {
        f"all served once, nothing lost ({setting.name})": partial(traffic.check_service, pair, setting)
        for setting in (*traffic.SETTINGS, *traffic.TIGHT_SETTINGS)
    }
    rules["it takes over and hands over while requests run"] = partial(
        traffic.check_switch, pair, _usual_pair, traffic.SETTINGS[2]
    )
    rules["same calls, same plans"] = partial(traffic.check_repetition, pair, traffic.SETTINGS[2])
    return rules


def _run_all(rules: abc.Mapping[str, Rule], on_check: OnCheck | None) -> tuple[Check, ...]:
    checks = []
    for title, rule in rules.items():
        checks.append(run(title, rule))
        if on_check is not None:
            on_check(checks[-1])
    return tuple(checks)
