"""The fields of a policy file: how each is called there, and how its value is read into the API's message."""

from collections import abc

from google.protobuf.message import Message

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.errors import UsageError
from gateway.cli.limits import parse_budget, parse_duration, parse_limit
from gateway.cli.policy_place import Place
from gateway.cli.references import class_name
from gateway.cli.resources import ModeChoice, ReservationChoice, StateChoice, StoreLossChoice

Setter = abc.Callable[[Message, Place], str]
"""Writes a value into its message and returns the field that it wrote."""


def fill(
    message: Message, place: Place, fields: abc.Mapping[str, Setter], skipped: tuple[str, ...] = ()
) -> dict[str, Place]:
    """`message` holds the values of `place`; returns the API's fields that it names, each with its value's place."""
    named = {}
    for name, value in place.items():
        if name in skipped:
            continue
        if name not in fields:
            raise value.refuse(f"unknown; there are {', '.join((*fields, *skipped))}")
        try:
            named[fields[name](message, value)] = value
        except ValueError as error:
            raise value.refuse(str(error)) from error
    return named


def _attribute(field: str, read: abc.Callable[[Place], object]) -> Setter:
    """Sets a scalar field."""

    def write(message: Message, place: Place) -> str:
        setattr(message, field, read(place))
        return field

    return write


def _list(field: str, parse: abc.Callable[[str], object]) -> Setter:
    """Sets a repeated field, each member from a text."""

    def write(message: Message, place: Place) -> str:
        for member in place.members():
            text = member.text()
            try:
                getattr(message, field).append(parse(text))
            except UsageError as error:
                raise member.refuse(str(error), error.hint) from error
        return field

    return write


def _choice(field: str, prefix: str, words: abc.Sequence[str]) -> Setter:
    """Sets an enum field from one of the words."""

    def write(message: Message, place: Place) -> str:
        word = place.text()
        if word not in words:
            raise place.refuse(f"must be one of {', '.join(words)}")
        setattr(message, field, prefix + word.upper().replace("-", "_"))
        return field

    return write


def _queue_wait(message: Message, place: Place) -> str:
    assert isinstance(message, pb.PriorityClass)
    text = place.text()
    if text not in ("none", "null", "~"):
        try:
            message.max_queue_wait.FromTimedelta(parse_duration(text))
        except UsageError as error:
            raise place.refuse(str(error)) from error
    return "max_queue_wait"


def _cost_weights(message: Message, place: Place) -> str:
    """`cost_weights: {"*": {output_token: 2}, llama: {…}}`, `*` for every model that is not named."""
    assert isinstance(message, pb.QuotaPolicy)
    for model, below in place.items():
        weights = pb.CostWeights(
            model="" if model == "*" else model, input_token=1, cached_input_token=1, output_token=2
        )
        fill(weights, below, COST_FIELDS)
        message.cost_weights.append(weights)
    return "cost_weights"


CLASS_FIELDS: abc.Mapping[str, Setter] = {
    "rank": _attribute("rank", Place.whole),
    "min_share": _attribute("min_share", Place.number),
    "preemptible": _attribute("preemptible", Place.flag),
    "max_queue_wait": _queue_wait,
}
ORGANIZATION_FIELDS: abc.Mapping[str, Setter] = {
    "display_name": _attribute("display_name", Place.text),
    "state": _choice("state", "STATE_", [choice.value for choice in StateChoice]),
}
TEAM_FIELDS: abc.Mapping[str, Setter] = {
    **ORGANIZATION_FIELDS,
    "durable_usage": _attribute("durable_usage", Place.flag),
    "shares_prefix_cache": _attribute("shares_prefix_cache", Place.flag),
    "speculation_disabled": _attribute("speculation_disabled", Place.flag),
    "default_class": _attribute("default_priority_class", lambda place: class_name(place.text())),
    "classes": _list("priority_class_grants", class_name),
}
COST_FIELDS: abc.Mapping[str, Setter] = {
    name: _attribute(name, Place.whole) for name in ("input_token", "cached_input_token", "output_token")
}
QUOTA_FIELDS: abc.Mapping[str, Setter] = {
    "weight": _attribute("weight", Place.number),
    "mode": _choice("mode", "QUOTA_MODE_", [choice.value for choice in ModeChoice]),
    "limits": _list("limits", parse_limit),
    "budgets": _list("budgets", parse_budget),
    "cost_weights": _cost_weights,
    "reservation": _choice("reservation", "RESERVATION_MODE_", [choice.value for choice in ReservationChoice]),
    "time_zone": _attribute("time_zone", Place.text),
    "strict": _attribute("strict", Place.flag),
    "on_store_loss": _choice("on_store_loss", "STORE_LOSS_ACTION_", [choice.value for choice in StoreLossChoice]),
    "max_overdraft": _attribute("max_overdraft", Place.whole),
}
