"""The runner without tensors, under the name by which the tests know it."""

from engine.sim.reference_runner import (
    POISON,
    VOCABULARY_SIZE,
    ConstantRunner,
    ReferenceRunner,
    Row,
    RunnerFaultError,
    expected_output,
    sample,
    slot_after,
)

__all__ = [
    "POISON",
    "VOCABULARY_SIZE",
    "ConstantRunner",
    "ReferenceRunner",
    "Row",
    "RunnerFaultError",
    "expected_output",
    "sample",
    "slot_after",
]
