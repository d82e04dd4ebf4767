"""How many entries the lists and maps of a request may have, told before anything looks at one of them.

Reading, comparing and storing a long list of one caller's would hold up everybody else's requests. The maximum is a
rule, not a list of fields: a field that is new has it. Messages of a prompt are left to the service that reads them,
which tells all that is wrong with a request at once.
"""

from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from gateway.errors import FieldViolation, InvalidFieldError

MAX_ENTRIES = 64
MAX_ENTRIES_IN_ALL = 100_000
LONGER = {
    "evenflow.admin.v1.ApplyPoliciesRequest.entries": 10_000,
    "evenflow.admin.v1.SimulateQuotaPoliciesRequest.entries": 10_000,
    "evenflow.admin.v1.CancelGenerationsRequest.generation_ids": 1000,
    "evenflow.inference.v1.CancelGenerationRequest.generation_ids": 1000,
    # What only the service writes comes back in an update of what was read.
    "evenflow.admin.v1.QuotaPolicy.temporary_quotas": 1000,
}
READ_BY_SERVICE = frozenset({"evenflow.inference.v1.GenerationSpec", "evenflow.inference.v1.CountTokensRequest"})


@dataclass(frozen=True, slots=True)
class _List:
    name: str
    maximum: int
    entries: "_Lists"


@dataclass(frozen=True, slots=True)
class _Lists:
    """Where a message has lists: in these fields, and in these messages of it."""

    own: tuple[_List, ...] = ()
    inner: tuple[tuple[str, "_Lists"], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.own or self.inner)


def require_short_lists(message: Message) -> None:
    """Raises InvalidFieldError, naming the list that is too long."""
    lists = _lists_of(message.DESCRIPTOR)
    if lists and _num_entries(message, lists, "") > MAX_ENTRIES_IN_ALL:
        raise InvalidFieldError(FieldViolation("", f"lists must have at most {MAX_ENTRIES_IN_ALL} entries together"))


def maximum(field: FieldDescriptor) -> int:
    """How many entries the list or map may have."""
    return LONGER.get(field.full_name, MAX_ENTRIES)


def _num_entries(message: Message, lists: _Lists, path: str) -> int:
    count = 0
    for each in lists.own:
        entries = getattr(message, each.name)
        if len(entries) > each.maximum:
            raise InvalidFieldError(FieldViolation(path + each.name, f"must have at most {each.maximum} entries"))
        count += len(entries)
        if each.entries:
            for index, entry in enumerate(entries):
                count += _num_entries(entry, each.entries, f"{path}{each.name}[{index}].")
    for name, inner in lists.inner:
        if message.HasField(name):
            count += _num_entries(getattr(message, name), inner, f"{path}{name}.")
    return count


@cache
def _lists_of(message: Descriptor) -> _Lists:
    if message.full_name in READ_BY_SERVICE:
        return _Lists()
    own = [_List(field.name, maximum(field), _lists_in(field)) for field in message.fields if field.is_repeated]
    inner = [(field.name, _lists_in(field)) for field in message.fields if not field.is_repeated]
    return _Lists(tuple(own), tuple((name, lists) for name, lists in inner if lists))


def _lists_in(field: FieldDescriptor) -> _Lists:
    """Those of the field's messages; a map has entries of scalars."""
    message = field.message_type
    return _Lists() if message is None or message.GetOptions().map_entry else _lists_of(message)
