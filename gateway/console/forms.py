"""What a browser's form sends, read within limits, and what is wrong with it, by field."""

import asyncio
from collections import abc
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from gateway.errors import FieldViolation, GatewayError, InvalidFieldError, http_status

MAX_BYTES = 1024 * 1024
MAX_FIELDS = 5000
PATIENCE_S = 15.0
MEDIA_TYPE = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Form:
    """Values by name, in the order in which they were sent."""

    values: abc.Mapping[str, abc.Sequence[str]] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Without spaces around it; empty where it was not sent."""
        return next(iter(self.values.get(name, ())), "").strip()

    def all(self, name: str) -> list[str]:
        """Of several fields of one name those that are not empty."""
        return [value.strip() for value in self.values.get(name, ()) if value.strip()]

    def words(self, name: str) -> list[str]:
        """What spaces, commas or line breaks separate."""
        return self.text(name).replace(",", " ").split()

    def is_on(self, name: str) -> bool:
        """Of a checkbox."""
        return name in self.values


@dataclass(frozen=True, slots=True)
class Problems:
    """What is wrong with a form: by the name of its field, and what belongs to none."""

    by_field: abc.Mapping[str, str] = field(default_factory=dict)
    general: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: GatewayError, names: abc.Mapping[str, str]) -> "Problems":
        """`names`: from a path in the request (`api_key.ip_cidrs`) to the form's field. Indices are left out."""
        by_field: dict[str, str] = {}
        general: list[str] = []
        for violation in error.field_violations:
            name = names.get(violation.field.partition("[")[0])
            if name is None:
                general.append(f"{violation.field}: {violation.description}".removeprefix(": "))
            else:
                by_field.setdefault(name, violation.description)
        if not error.field_violations:
            general.append(error.message)
        return cls(by_field, tuple(general))

    def at(self, name: str) -> str:
        """What is wrong with the field; empty where nothing is."""
        return self.by_field.get(name, "")

    def __bool__(self) -> bool:
        return bool(self.by_field or self.general)


def told(error: GatewayError | None, names: abc.Mapping[str, str]) -> tuple[int, Problems]:
    """The status that a form comes back with, and what is wrong with it. None: it is shown for the first time."""
    return (200, Problems()) if error is None else (http_status(error), Problems.of(error, names))


async def read_form(request: Request, max_bytes: int = MAX_BYTES) -> Form:
    """Raises InvalidFieldError for what is no form, or too large or slow a one."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != MEDIA_TYPE:
        raise _refused("is no form")
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise _refused(f"is larger than {max_bytes} bytes")
    except TimeoutError:
        raise _refused("arrived too slowly") from None
    except ClientDisconnect:
        raise _refused("broke off") from None
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        raise _refused("cannot be read") from None
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value.replace("\r\n", "\n"))
    return Form(values)


def _refused(why: str) -> InvalidFieldError:
    return InvalidFieldError(FieldViolation("", f"what the browser sent {why}"))
