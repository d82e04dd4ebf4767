"""Which fields an update changes (AIP-134): paths checked against what the resource lets callers write.

An absent mask means every writable field that is set in the message; `*` means every writable field. A path below a
field (`limits.burst`) is refused: fields are replaced as wholes.
"""

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from gateway.admin.names import invalid


def changed_fields(mask: FieldMask, message: Message, field: str, writable: frozenset[str]) -> frozenset[str]:
    """The fields of `message` to write. Raises InvalidFieldError, naming the path, for any that is not writable."""
    if list(mask.paths) == ["*"]:
        return writable
    if not mask.paths:
        return set_fields(message, writable)
    for path in mask.paths:
        if path not in message.DESCRIPTOR.fields_by_name:
            raise invalid("update_mask", f"{field} has no field {path!r}")
        if path not in writable:
            raise invalid("update_mask", f"{path!r} of {field} cannot be changed")
    return frozenset(mask.paths)


def set_fields(message: Message, writable: frozenset[str]) -> frozenset[str]:
    """The writable fields that `message` holds. What only the service writes is ignored (AIP-203)."""
    return frozenset(descriptor.name for descriptor, _ in message.ListFields()) & writable
