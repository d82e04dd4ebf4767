"""What every admin method does around its statement: who makes the change, retries, refusals, pages.

Knows no resource. A change is made in the name of the caller's key; once it is committed, this gateway decides by it
before the answer leaves (the others hear of it through the store).
"""

import hashlib
import json
from collections import abc
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

from google.protobuf.message import Message

from gateway import errors
from gateway.admin.filters import parse_filter, parse_order
from gateway.admin.names import invalid
from gateway.admin.pagination import MAX_PAGE_SIZE, PageTokens, page_size
from gateway.auth import Action, current_principal
from gateway.errors_requests import RequestIdReusedError
from gateway.store import errors as store_errors
from gateway.store.cache import TenancyCache
from gateway.store.changes import Change
from gateway.store.db import Database
from gateway.store.identity import PLATFORM
from gateway.store.listing import Fields, Kind, sort_values
from gateway.store.records import Key, Order, Page, ResourcePath, SortValue
from gateway.telemetry import current_rpc

MAX_PAGE_BYTES = 2 * 2**20  # clients take 4 MiB unless they say otherwise
# What `InvalidValueError.field` says where the schema, not a statement, refused a row.
CONSTRAINT_PREFIXES = ("ck_", "fk_", "uq_", "pk_")


class Identified(Protocol):
    """A record of the store."""

    @property
    def id(self) -> Key: ...


class ListRequest(Protocol):
    """What every request for a list has."""

    @property
    def page_size(self) -> int: ...

    @property
    def page_token(self) -> str: ...

    @property
    def filter(self) -> str: ...

    @property
    def order_by(self) -> str: ...


Record = TypeVar("Record", bound=Identified)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of one noun: whose it is, what it can be filtered and sorted by, how its keys are read from a token.

    `default_order` holds where the request names none. `weigh`: a record's bytes, where they can be many.
    """

    name: str
    fields: Fields
    parse_key: abc.Callable[[str], Key] = UUID
    default_order: tuple[Order, ...] = ()
    weigh: abc.Callable[[Any], int] = lambda _: 0  # Any: of the noun's own record


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
        first = Page(size + 1, None if after is None else UUID(after))
        records = await self._visible(fetch, first, lambda page, last: replace(page, after=last.id))
        if len(records) <= size:
            return records, ""
        return records[:size], self.pages.issue(str(records[size - 1].id), listing)

    async def filtered_page(
        self,
        fetch: abc.Callable[[Page], abc.Awaitable[abc.Sequence[Record]]],
        request: ListRequest,
        listing: Listing,
        *,
        shows_deleted: bool = False,
    ) -> tuple[abc.Sequence[Record], str]:
        """One page of what the request's `filter` finds, in its `order_by`, and the token of the next page or "".

        A token continues this list only: with another filter or order it is refused. Raises InvalidFieldError,
        NotFoundError.
        """
        size = page_size(request.page_size)
        order = parse_order(request.order_by) or listing.default_order
        name = "\0".join((listing.name, request.filter, request.order_by, str(shows_deleted)))
        token = self.pages.read(request.page_token, name)
        after, values = (None, ()) if token is None else _read_position(token, order, listing)
        page = Page(size + 1, after, parse_filter(request.filter), order, values, shows_deleted)
        records = await self._visible(
            fetch,
            page,
            lambda page, last: replace(page, after=last.id, after_values=sort_values(last, order, listing.fields)),
        )
        kept = _fitting(records[:size], listing)
        if len(kept) == len(records):
            return records, ""
        return kept, self.pages.issue(_position(kept[-1], order, listing), name)

    async def _visible(
        self,
        fetch: abc.Callable[[Page], abc.Awaitable[abc.Sequence[Record]]],
        page: Page,
        after: abc.Callable[[Page, Record], Page],
    ) -> abc.Sequence[Record]:
        """Up to `page.size` of the records that the caller may read, from as many pages as that takes."""
        if current_principal().may(Action.READ, PLATFORM):
            return await self.read(fetch(page))
        found: list[Record] = []
        wide = replace(page, size=MAX_PAGE_SIZE)
        while True:
            records = await self.read(fetch(wide))
            found += filter(_is_visible, records)
            if len(found) >= page.size or len(records) < wide.size:
                return found[: page.size]
            wide = after(wide, records[-1])


def refusal(error: store_errors.StoreError, field: str) -> Exception:
    """What the caller is told. An error that no caller can act on stays as it is, for the interceptor."""
    if isinstance(error, store_errors.NotFoundError):
        return errors.NotFoundError(error.resource)
    if isinstance(error, store_errors.AlreadyExistsError):
        return errors.AlreadyExistsError(str(error), metadata={"resource": error.resource})
    if isinstance(error, store_errors.StoreConflictError):
        return errors.EtagMismatchError(str(error), metadata={"etag": error.current_etag})
    if isinstance(error, store_errors.RequestIdReusedError):
        return RequestIdReusedError()
    if isinstance(error, store_errors.LastPlatformKeyError | store_errors.PreconditionFailedError):
        return errors.PreconditionError(str(error))
    if isinstance(error, store_errors.InvalidValueError):
        is_constraint = error.field.startswith(CONSTRAINT_PREFIXES)
        path = f"{field}.{error.field}" if field else error.field
        if not error.field:
            path = ""
        return invalid(field if is_constraint else path, error.description)
    return error


def _fitting(records: abc.Sequence[Record], listing: Listing) -> abc.Sequence[Record]:
    """The first of them, and more while they fit into one answer. A page may be shorter than it was asked to be."""
    total = 0
    for index, record in enumerate(records):
        total += listing.weigh(record)
        if index and total > MAX_PAGE_BYTES:
            return records[:index]
    return records


def _is_visible(record: Identified) -> bool:
    """What has no place in the tenant tree is everybody's who may read anything."""
    path = getattr(record, "path", None)
    return not isinstance(path, ResourcePath) or current_principal().may(Action.READ, path)


def _position(record: Identified, order: tuple[Order, ...], listing: Listing) -> str:
    values = [
        value.isoformat() if isinstance(value, datetime) else value
        for value in sort_values(record, order, listing.fields)
    ]
    return json.dumps([str(record.id), *values])


def _read_position(token: str, order: tuple[Order, ...], listing: Listing) -> tuple[Key, tuple[SortValue, ...]]:
    key, *values = json.loads(token)
    kinds = (listing.fields[each.path].kind for each in order)
    read = (
        datetime.fromisoformat(value) if kind is Kind.TIME else value for kind, value in zip(kinds, values, strict=True)
    )
    return listing.parse_key(key), tuple(read)


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
