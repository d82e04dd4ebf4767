"""What the suite found: named checks, each passed or with the reason why not.

ConformanceError says what the policy did that it must not do. Whatever else a policy raises is its fault too, and the
report names the line.
"""

import traceback
from collections import abc
from dataclasses import dataclass


class ConformanceError(Exception):
    """The policy does not keep a rule; the message says which and how."""


def require(condition: bool, message: str) -> None:
    """Raises ConformanceError unless `condition`."""
    if not condition:
        raise ConformanceError(message)


@dataclass(frozen=True, slots=True)
class Check:
    """One rule. `reason` is None if it is kept."""

    name: str
    reason: str | None

    @property
    def passed(self) -> bool:
        return self.reason is None


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one policy. `kind` is `scheduling` or `preemption`."""

    policy: str
    kind: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def run(name: str, rule: abc.Callable[[], None]) -> Check:
    """The check `name`, made by calling `rule`."""
    try:
        rule()
    except ConformanceError as error:
        return Check(name, str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # a stranger's code may raise anything; the report says what
        return Check(name, _describe(error))
    return Check(name, None)


def _describe(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno}, in {frame.name})"
