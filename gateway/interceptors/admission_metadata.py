"""What a caller may say about admission beside its message: a class and a bound on waiting, for clients whose library
hides the message. A field that the message sets wins.

Both are asked for, not decided here: the class has to be granted. Nothing else of what a caller sends is read; who it
is, is the credential's to say, so `x-evenflow-tenant` and its like mean nothing.
"""

from collections import abc

from evenflow.inference.v1.generation_pb2 import GenerationSpec
from gateway.errors import FieldViolation, InvalidFieldError

PRIORITY_CLASS = "x-evenflow-priority-class"
MAX_QUEUE_WAIT_MS = "x-evenflow-max-queue-wait-ms"
LONGEST_WAIT_MS = 86_400_000
MAX_CLASS_CHARS = 63

Values = abc.Callable[[str], abc.Sequence[str]]
"""Everything that the caller sent under a name."""


def apply_admission_metadata(message: object, values: Values) -> None:
    """The spec in `message`, if it has one, holds what the metadata adds to it. Raises InvalidFieldError."""
    spec = _spec(message)
    if spec is not None:
        apply_to_spec(spec, values)


def apply_to_spec(spec: GenerationSpec, values: Values) -> None:
    """`spec` holds what the metadata adds to it. Raises InvalidFieldError."""
    priority_class, wait_ms = _only(values, PRIORITY_CLASS), _only(values, MAX_QUEUE_WAIT_MS)
    if priority_class is not None and not 0 < len(priority_class) <= MAX_CLASS_CHARS:
        raise _invalid(PRIORITY_CLASS, f"must have 1 to {MAX_CLASS_CHARS} characters")
    is_number = wait_ms is not None and wait_ms.isascii() and wait_ms.isdigit() and len(wait_ms) <= len("86400000")
    if wait_ms is not None and not (is_number and 0 < int(wait_ms) <= LONGEST_WAIT_MS):
        raise _invalid(MAX_QUEUE_WAIT_MS, f"must be milliseconds, 1 to {LONGEST_WAIT_MS}")
    if priority_class is not None and not spec.admission.priority_class:
        spec.admission.priority_class = priority_class
    if wait_ms is not None and not spec.admission.HasField("max_queue_wait"):
        spec.admission.max_queue_wait.FromMilliseconds(int(wait_ms))


def _spec(message: object) -> GenerationSpec | None:
    spec = getattr(message, "spec", None)
    return spec if isinstance(spec, GenerationSpec) else None


def _only(values: Values, name: str) -> str | None:
    given = values(name)
    if len(given) > 1:
        raise _invalid(name, "is given twice")
    return given[0] if given else None


def _invalid(name: str, description: str) -> InvalidFieldError:
    return InvalidFieldError(FieldViolation(name, description))
