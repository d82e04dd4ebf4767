"""What the lines of a decision log must hold: checked before a scheduler is told anything.

A field of another type, out of range or unknown is refused by its name. Weights of `update_nodes` are the scheduler's
to judge: a log may have the call that it refused.
"""

from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, ConfigDict, create_model

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices, StepCosts
from engine.decision_log import Json
from engine.sim.json_text import parse_json

MAX_ROW_TOKENS = 65_536  # that one row of one step can have accepted
MAX_STEP_TOKENS = 1_000_000
MAX_WIDTH = 1024  # beams of one search

Int64 = Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, pydantic.Field(ge=0, lt=2**63)]
Price = Annotated[float, pydantic.Field(ge=0, lt=2**63)]
Row = Annotated[str, pydantic.Field(pattern=r"^[0-9]{1,9}$")]
# JSON has lists only, which are no tuples where types are strict.
Node = Annotated[tuple[str, float], pydantic.Strict(strict=False)]
NodeChange = Annotated[tuple[list[str], float, Count], pydantic.Strict(strict=False)]
Common = Annotated[tuple[Count, Count, Count, Count], pydantic.Strict(strict=False)]
RowTokens = Annotated[int, pydantic.Field(ge=0, le=MAX_ROW_TOKENS)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class _Class(_Strict):
    name: str
    rank: Int64 = 0
    min_share: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.0
    preemptible: bool = True


class _Policy(_Strict):
    name: str
    options: dict[str, str]


class _BeamSearch(_Strict):
    width: Annotated[int, pydantic.Field(ge=2, le=MAX_WIDTH)]
    num_returned: Annotated[int, pydantic.Field(ge=1, le=MAX_WIDTH)]
    length_penalty: Annotated[float, pydantic.Field(ge=-10, le=10)]
    early_stopping: bool


class _Request(_Strict):
    id: str
    path: list[Node]
    prompt: Count
    output: Int64
    arrived_at: Count
    priority_class: _Class
    deadline: Int64 | None = None
    queue_deadline: Int64 | None = None
    granted_output_tokens: Int64 | None = None
    stops: bool = False
    speculates: bool = True
    scored: bool = False
    beam_search: _BeamSearch | None = None
    policy_revision: Count = 0
    salt: str = ""
    blocks: list[Count] = []
    end: Count | None = None
    common: list[Common] = []


class _Line(_Strict):
    t: Count
    e: str
    raised: str | None = None


class _Add(_Line):
    request: _Request


class _Plan(_Line):
    step: Count | None
    digest: str | None


class _Candidates(_Strict):
    logprobs: Annotated[list[float], pydantic.Field(max_length=MAX_ROW_TOKENS)]
    stops: list[Count] = []
    blocks: list[Count] = []


class _Commit(_Line):
    step: Count
    lengths: dict[Row, RowTokens] = {}
    ended: dict[Row, RowTokens] = {}
    errors: dict[Row, str] = {}
    copies: list[Count] = []
    proposed: dict[Row, RowTokens] = {}
    certain: dict[Row, RowTokens] = {}
    blocks: dict[Row, list[Count]] = {}
    candidates: dict[Row, _Candidates] = {}


class _Abort(_Line):
    id: str
    reason: str


class _CompleteCopies(_Line):
    copies: list[Count]


class _Grant(_Line):
    id: str
    output: Int64


class _SetReaderBlocked(_Line):
    id: str
    blocked: bool


class _SetClass(_Line):
    id: str
    priority_class: _Class


class _SetPolicy(_Line, _Policy):
    pass


class _UpdateNodes(_Line):
    model_config = ConfigDict(allow_inf_nan=True)

    nodes: list[NodeChange]


class _UpdateClasses(_Line):
    classes: list[_Class]
    revision: Count


def _model_of(kind: Any, **replaced: Any) -> type[BaseModel]:  # a dataclass of the core; types by field
    """The fields of a dataclass, with enums as the text of their values."""
    columns = {field.name: (replaced.get(field.name) or _type(field), _default(field)) for field in fields(kind)}
    model: type[BaseModel] = create_model(kind.__name__, __base__=_Strict, **columns)  # type: ignore[call-overload]  # any
    return model


def _type(field: Field[Any]) -> Any:  # of the field
    if field.type is float:
        return Price
    return str if isinstance(field.type, type) and issubclass(field.type, Enum) else field.type


def _default(field: Field[Any]) -> Any:  # of the field
    return ... if field.default is MISSING else None


_Config = _model_of(SchedulerConfig)
_Calibrate = create_model("_Calibrate", __base__=_Line, prices=(_model_of(Prices, step=_model_of(StepCosts)), ...))
_Header = create_model(
    "_Header",
    __base__=_Strict,
    version=(int, ...),
    config=(_Config, ...),
    scheduling_policy=(_Policy, ...),
    preemption_policy=(_Policy, ...),
)

_LINES: dict[str, type[BaseModel]] = {
    "add": _Add,
    "plan": _Plan,
    "commit": _Commit,
    "abort": _Abort,
    "expire": _Line,
    "complete_copies": _CompleteCopies,
    "requeue": _Line,
    "fail_all": _Line,
    "grant": _Grant,
    "set_reader_blocked": _SetReaderBlocked,
    "set_class": _SetClass,
    "calibrate": _Calibrate,
    "set_scheduling_policy": _SetPolicy,
    "set_preemption_policy": _SetPolicy,
    "update_nodes": _UpdateNodes,
    "update_classes": _UpdateClasses,
}


def parse_line(text: str) -> Json:
    """The object in a line. Raises ValueError."""
    line = parse_json(text)
    if not isinstance(line, dict):
        raise ValueError("is not an object")
    return line


def check_header(line: Json) -> None:
    """Raises ValueError, naming the field that is wrong."""
    _check(_Header, line)


def check_line(line: Json) -> None:
    """Raises ValueError, naming the field that is wrong, and KeyError for what every line needs."""
    method = line["e"]
    model = _LINES.get(method) if isinstance(method, str) else None
    if model is None:
        raise KeyError(method)
    line["t"]
    _check(model, line)
    if method == "commit":
        _check_tokens(line)


def _check(model: type[BaseModel], line: Json) -> None:
    try:
        model.model_validate(line)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}") from None


def _check_tokens(line: Json) -> None:
    """No more tokens than a step can give, and outputs that end within them."""
    lengths = line.get("lengths", {})
    if sum(lengths.values()) > MAX_STEP_TOKENS:
        raise ValueError(f"lengths: a step accepts at most {MAX_STEP_TOKENS:,} tokens")
    for row, num_until_stop in line.get("ended", {}).items():
        if not 1 <= num_until_stop <= lengths.get(row, 1):
            raise ValueError(f"ended: row {row} ends at token {num_until_stop} of {lengths.get(row, 1)}")
