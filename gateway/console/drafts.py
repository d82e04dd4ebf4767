"""A form that is filled in, may come back with what is wrong, and may meet what somebody else has saved meanwhile."""

from collections import abc
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from uuid import uuid4

from google.protobuf import json_format
from google.protobuf.message import Message
from starlette.responses import Response

from gateway.console.form_values import Fields
from gateway.console.forms import Problems
from gateway.console.last_change import last_change
from gateway.console.versions import Difference
from gateway.console.visit import Visit

Version = TypeVar("Version", bound=Message)


# No slots: on Python 3.11 a frozen class with slots cannot be made by its generic name.
@dataclass(frozen=True)
class Draft(Generic[Version]):
    """The fields as they are shown, the version that they began as, and what is wrong with them."""

    fields: Fields
    base: Version
    problems: Problems = field(default_factory=Problems)

    def value(self, name: str) -> str:
        return self.fields.get(name, "")

    def problem(self, name: str) -> str:
        return self.problems.at(name)

    @property
    def kept(self) -> dict[str, str]:
        """What the form carries unseen. A repeated press of a button is the same request."""
        text = json_format.MessageToJson(self.base, indent=None) if self.base.ByteSize() else "{}"
        return {"base": text, "etag": self.value("etag"), "request_id": str(uuid4())}


@dataclass(frozen=True, slots=True)
class Conflict:
    """Somebody else has saved `name` since the form was loaded. `hidden`: the form of what saving on top would send."""

    name: str
    title: str
    crumbs: abc.Sequence[tuple[str, str]]
    page: str
    differences: abc.Sequence[Difference]
    hidden: abc.Mapping[str, str]
    may_preview: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether saving on top would change nothing: all that was wanted is in force."""
        return all(each.result == each.theirs for each in self.differences)


def fields_of(visit: Visit) -> Fields:
    """What was sent; of several fields of one name the first."""
    return {name: values[0] for name, values in visit.form.values.items()}


def base_of(fields: Fields, kind: type[Version]) -> Version:
    """The version that the form began as; an empty one where it does not say, or says what is none."""
    try:
        return json_format.Parse(fields.get("base", "{}"), kind(), ignore_unknown_fields=True)
    except json_format.ParseError:
        return kind()


async def conflict_page(visit: Visit, conflict: Conflict) -> Response:
    """All three versions, part by part, and what becomes of them."""
    return await visit.render("conflict.html", 409, conflict=conflict, change=await last_change(visit, conflict.name))
