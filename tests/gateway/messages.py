"""Messages of any type, made from its descriptor: every field with values that are right, nearly right and absurd."""

from collections import abc

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

MAX_DEPTH = 4
MAX_ENTRIES = 2
ABSURD = st.text(max_size=12) | st.sampled_from(["\0", "a\0b", "\ud7ff", "x" * 70, "’" * 400, "-", "*", "."])
_INTEGER_BITS = {
    FieldDescriptor.TYPE_INT32: (31, 31),
    FieldDescriptor.TYPE_SINT32: (31, 31),
    FieldDescriptor.TYPE_SFIXED32: (31, 31),
    FieldDescriptor.TYPE_INT64: (63, 63),
    FieldDescriptor.TYPE_SINT64: (63, 63),
    FieldDescriptor.TYPE_SFIXED64: (63, 63),
    FieldDescriptor.TYPE_UINT32: (None, 32),
    FieldDescriptor.TYPE_FIXED32: (None, 32),
    FieldDescriptor.TYPE_UINT64: (None, 64),
    FieldDescriptor.TYPE_FIXED64: (None, 64),
}

Sensible = abc.Callable[[FieldDescriptor], abc.Sequence[str]]
"""Texts that could be meant in a field."""


def messages(descriptor: Descriptor, sensible: Sensible) -> st.SearchStrategy[Message]:
    """Messages of the type. Most texts are sensible, most messages have a field or two that is not."""
    return _messages(descriptor, sensible, 0)


def method_descriptors(services: abc.Iterable[str]) -> abc.Iterator[MethodDescriptor]:
    """The methods of the services of these names."""
    for service in services:
        yield from descriptor_pool.Default().FindServiceByName(service).methods


@st.composite
def _messages(draw: st.DrawFn, descriptor: Descriptor, sensible: Sensible, depth: int) -> Message:
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        is_too_deep = depth >= MAX_DEPTH and field.message_type is not None
        if not is_too_deep and draw(st.integers(0, 9)) < _chance(field):
            _fill(draw, message, field, sensible, depth)
    return message


def _chance(field: FieldDescriptor) -> int:
    """Of ten: what identifies is nearly always there, what only guards a change hardly ever."""
    if field.name in ("name", "parent", "model") or field.name.endswith("_id"):
        return 9
    return 1 if field.name in ("etag", "page_token", "request_id", "validate_only") else 5


def _fill(draw: st.DrawFn, message: Message, field: FieldDescriptor, sensible: Sensible, depth: int) -> None:
    held = field.message_type
    if held is not None and held.GetOptions().map_entry:
        keys, values = held.fields_by_name["key"], held.fields_by_name["value"]
        for _ in range(draw(st.integers(0, MAX_ENTRIES))):
            getattr(message, field.name)[draw(_scalars(keys, sensible))] = draw(_scalars(values, sensible))
    elif held is not None and field.is_repeated:
        for _ in range(draw(st.integers(0, MAX_ENTRIES))):
            getattr(message, field.name).append(draw(_messages(held, sensible, depth + 1)))
    elif held is not None:
        getattr(message, field.name).CopyFrom(draw(_messages(held, sensible, depth + 1)))
    elif field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(_scalars(field, sensible), max_size=MAX_ENTRIES)))
    else:
        setattr(message, field.name, draw(_scalars(field, sensible)))


def _scalars(field: FieldDescriptor, sensible: Sensible) -> st.SearchStrategy[object]:
    if field.type == FieldDescriptor.TYPE_STRING:
        texts = sensible(field)
        meant = st.sampled_from(texts) if texts else ABSURD
        return st.integers(0, 9).flatmap(lambda one_in_ten: meant if one_in_ten else ABSURD)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=8)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.sampled_from([*(value.number for value in field.enum_type.values), 99])
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return st.sampled_from([0.0, 0.5, 1.0]) | st.floats(width=32)
    low, high = _INTEGER_BITS[field.type]
    smallest, largest = 0 if low is None else -(2**low), 2**high - 1
    return st.integers(0, 20) | st.integers(0, 20) | st.sampled_from([smallest, largest, -1 if low else 1])
