"""Policies by name: ours and a stranger's come through the same entry points.

A policy's options are the keyword parameters of its constructor, each annotated `int`, `float`, `bool` or `str`.
Loading one and throwing it away validates a change before it is made.

Two attributes say which policies cannot work together; a policy without them makes no claim:

    requires_preemption  of a scheduling policy: True if it keeps what it promises only where others give way
    preempts             of a preemption policy: False if nobody ever gives way

PolicyError                  the policy cannot be used as it was asked for; the message names what to change
├── UnknownPolicyError       no installed distribution has it, or several do
├── BrokenPolicyError        it cannot be imported, or is no policy
├── UnknownOptionError       it has no such option
└── InvalidOptionError       the option's value is not of its type, the policy refuses it, or two policies contradict
                             each other
"""

import inspect
import os
import sys
from collections import abc
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

from engine.core.policy import PreemptionPolicy, SchedulingPolicy

SCHEDULING_GROUP = "evenflow.scheduling_policies"
PREEMPTION_GROUP = "evenflow.preemption_policies"

BOOLEANS = {"true": True, "false": False}


class PolicyError(Exception):
    """Base of every error that loading a policy raises."""


class UnknownPolicyError(PolicyError):
    """No such policy is installed, or more than one; `installed` are the names to choose from."""

    def __init__(self, message: str, installed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.installed = installed


class BrokenPolicyError(PolicyError):
    """The distribution that has the policy is at fault."""


class UnknownOptionError(PolicyError):
    """The policy has no such option."""


class InvalidOptionError(PolicyError):
    """The policy has the option but cannot take the value."""


def load_scheduling_policy(name: str, options: abc.Mapping[str, str]) -> SchedulingPolicy:
    """A new policy. Raises PolicyError."""
    policy: SchedulingPolicy = _load(SCHEDULING_GROUP, name, options)
    _check_methods(name, policy, SchedulingPolicy)
    return policy


def load_preemption_policy(name: str, options: abc.Mapping[str, str]) -> PreemptionPolicy:
    """A new policy. Raises PolicyError."""
    policy: PreemptionPolicy = _load(PREEMPTION_GROUP, name, options)
    _check_methods(name, policy, PreemptionPolicy)
    return policy


def check_pair(scheduling: SchedulingPolicy, preemption: PreemptionPolicy) -> None:
    """Raises InvalidOptionError if one of the two needs what the other never does."""
    if getattr(scheduling, "requires_preemption", False) and not getattr(preemption, "preempts", True):
        raise InvalidOptionError(
            f"scheduling policy {_name(scheduling)} with these options needs a preemption policy that preempts;"
            f" {_name(preemption)} never does"
        )


def installed(group: str) -> tuple[str, ...]:
    """The names that one of the two groups offers, in order."""
    return tuple(sorted({entry.name for entry in _entries(group)}))


def _find(group: str, name: str) -> dict[str, EntryPoint]:
    """What goes by that name, by what it is."""
    return {entry.value: entry for entry in _entries(group).select(name=name)}


def _entries(group: str) -> EntryPoints:
    """What is installed now. To read it anew takes as long as a step: a file of every distribution.

    A distribution that comes or goes is seen, as its folder's parent changes; an `entry_points.txt` that is rewritten
    inside a folder that stays is not, until a name is asked for that is not there.
    """
    return _read_entries(group, tuple((folder, _changed_ns(folder)) for folder in sys.path))


@lru_cache(maxsize=8)
def _read_entries(group: str, path: tuple[tuple[str, int], ...]) -> EntryPoints:
    return entry_points(group=group)


def _changed_ns(folder: str) -> int:
    """When a distribution last came to `folder`, or went; 0 for what is no folder."""
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return 0


def _load(group: str, name: str, options: abc.Mapping[str, str]) -> Any:  # a stranger's class: the caller checks it
    factory = _import(_entry_point(group, name))
    types = _option_types(name, factory)
    unknown = sorted(options.keys() - types.keys())
    if unknown:
        known = ", ".join(types) or "none"
        raise UnknownOptionError(f"policy {name} has no option {unknown[0]}; its options are: {known}")
    arguments = {option: _parse(name, option, text, types[option]) for option, text in options.items()}
    try:
        return factory(**arguments)
    except ValueError as error:
        raise InvalidOptionError(f"policy {name}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a stranger's constructor: what it cannot do is its fault, not the engine's
        raise BrokenPolicyError(f"policy {name} cannot be made: {type(error).__name__}: {error}") from error


def _entry_point(group: str, name: str) -> EntryPoint:
    found = _find(group, name)
    if not found:  # or it is just being installed
        _read_entries.cache_clear()
        found = _find(group, name)
    if not found:
        names = installed(group)
        raise UnknownPolicyError(f"there is no policy {name}; installed are: {', '.join(names)}", names)
    if len(found) > 1:
        raise UnknownPolicyError(
            f"policy {name} is installed more than once: {', '.join(sorted(found))}", installed(group)
        )
    return next(iter(found.values()))


def _import(entry: EntryPoint) -> abc.Callable[..., Any]:  # its parameters are the policy's own
    try:
        factory = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a stranger's module may raise anything, and end the process
        problem = f"{type(error).__name__}: {error}"
        raise BrokenPolicyError(f"policy {entry.name} ({entry.value}) cannot be imported: {problem}") from error
    if not inspect.isclass(factory):
        raise BrokenPolicyError(f"policy {entry.name} ({entry.value}) is not a class")
    return factory


def _option_types(name: str, factory: abc.Callable[..., Any]) -> dict[str, type]:  # see _import
    try:
        parameters = inspect.signature(factory, eval_str=True).parameters
    except NameError as error:
        raise BrokenPolicyError(f"the options of policy {name} are annotated with an unknown type: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an annotation as text is code
        problem = f"{type(error).__name__}: {error}"
        raise BrokenPolicyError(f"the options of policy {name} cannot be read: {problem}") from error
    return {option: parameter.annotation for option, parameter in parameters.items()}


def _parse(name: str, option: str, text: str, kind: type) -> int | float | bool | str:
    try:
        if kind is bool:
            return BOOLEANS[text.lower()]
        if kind in (int, float, str):
            value: int | float | str = kind(text)
            return value
    except (ValueError, KeyError) as error:
        raise InvalidOptionError(f"option {option} of policy {name} must be {kind.__name__}, not {text!r}") from error
    raise BrokenPolicyError(f"option {option} of policy {name} must be annotated int, float, bool or str")


def _check_methods(name: str, policy: object, protocol: type) -> None:
    methods = [method for method in vars(protocol) if not method.startswith("_")]
    missing = [method for method in methods if not callable(getattr(policy, method, None))]
    if missing:
        raise BrokenPolicyError(f"policy {name} is no {protocol.__name__}: it lacks {', '.join(missing)}")


def _name(policy: object) -> str:
    """As it is installed, or its class where it was made by hand."""
    kind = type(policy)
    value = f"{kind.__module__}:{kind.__qualname__}"
    entries = (*_entries(SCHEDULING_GROUP), *_entries(PREEMPTION_GROUP))
    return next((entry.name for entry in entries if entry.value == value), value)
