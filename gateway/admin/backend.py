"""What every admin method does around its statement: who makes the change, retries, refusals, pages.

Knows no resource. A change is made in the name of the caller's key; once it is committed, this gateway decides by it
before the answer leaves (the others hear of it through the store).
"""

import hashlib
from collections import abc
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar
from uuid import UUID

from google.protobuf.message import Message

from gateway import errors
from gateway.admin.names import invalid
from gateway.admin.pagination import PageTokens, page_size
from gateway.auth import current_principal
from gateway.store import errors as store_errors
from gateway.store.cache import TenancyCache
from gateway.store.changes import Change
from gateway.store.db import Database
from gateway.store.records import Page
from gateway.telemetry import current_rpc

# What `InvalidValueError.field` says where the schema, not a statement, refused a row.
CONSTRAINT_PREFIXES = ("ck_", "fk_", "uq_", "pk_")


class Identified(Protocol):
    """A record of the store."""

    @property
    def id(self) -> UUID: ...


Record = TypeVar("Record", bound=Identified)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Backend:
    """The store as the admin methods use it."""

    database: Database
    cache: TenancyCache
    pages: PageTokens

    def change(self, request: Message, request_id: str, *, validate_only: bool, etag: str = "") -> Change:
        """The caller's change. Two requests that differ in anything but their id are different ones.

        Raises InvalidFieldError if `request_id` is not empty and no UUID.
        """
        rpc = current_rpc()
        return Change(
            actor=current_principal().name,
            correlation_id=rpc.request_id if rpc is not None else "",
            request_id=_parse_request_id(request_id),
            fingerprint=_fingerprint(request),
            validate_only=validate_only,
            etag=etag or None,
        )

    async def commit(self, statement: abc.Awaitable[Record], change: Change, field: str) -> Record:
        """The record that `statement` changed, in force here. `field` is where the request holds the resource."""
        record = await self.read(statement, field)
        if not change.validate_only:
            await self.catch_up()
        return record

    async def catch_up(self) -> None:
        """What was committed is in force here."""
        with suppress(store_errors.DatabaseUnavailableError):  # it is committed; the cache's own polling catches up
            await self.cache.refresh()

    async def read(self, statement: abc.Awaitable[Result], field: str = "") -> Result:
        """What `statement` returns. Raises GatewayError for what the store refuses."""
        try:
            return await statement
        except store_errors.StoreError as error:
            raise refusal(error, field) from error

    async def page(
        self, fetch: abc.Callable[[Page], abc.Awaitable[abc.Sequence[Record]]], size: int, token: str, listing: str
    ) -> tuple[abc.Sequence[Record], str]:
        """One page of `listing`, and the token of the next one or "". Raises InvalidFieldError, NotFoundError."""
        size = page_size(size)
        after = self.pages.read(token, listing)
        try:
            records = await fetch(Page(size + 1, None if after is None else UUID(after)))
        except store_errors.StoreError as error:
            raise refusal(error, "") from error
        if len(records) <= size:
            return records, ""
        return records[:size], self.pages.issue(str(records[size - 1].id), listing)


def refusal(error: store_errors.StoreError, field: str) -> Exception:
    """What the caller is told. An error that no caller can act on stays as it is, for the interceptor."""
    if isinstance(error, store_errors.NotFoundError):
        return errors.NotFoundError(error.resource)
    if isinstance(error, store_errors.AlreadyExistsError):
        return errors.AlreadyExistsError(str(error), metadata={"resource": error.resource})
    if isinstance(error, store_errors.StoreConflictError):
        return errors.EtagMismatchError(str(error), metadata={"etag": error.current_etag})
    if isinstance(error, store_errors.RequestIdReusedError):
        return errors.RequestIdReusedError()
    if isinstance(error, store_errors.LastPlatformKeyError):
        return errors.PreconditionError(str(error))
    if isinstance(error, store_errors.InvalidValueError):
        is_constraint = error.field.startswith(CONSTRAINT_PREFIXES)
        return invalid(field if is_constraint else f"{field}.{error.field}", error.description)
    return error


def _parse_request_id(text: str) -> UUID | None:
    if not text:
        return None
    try:
        return UUID(text)
    except ValueError as error:
        raise invalid("request_id", "must be a UUID") from error


def _fingerprint(request: Message) -> bytes:
    content = request.SerializeToString(deterministic=True)
    return hashlib.sha256(request.DESCRIPTOR.full_name.encode() + b"\0" + content).digest()
