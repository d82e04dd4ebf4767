"""Priority classes: from requests to statements, from records to resources."""

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend, Listing
from gateway.admin.masks import changed_fields
from gateway.admin.names import check_slug, invalid, parse_priority_class
from gateway.store.priority_classes import (
    FIELDS,
    create_priority_class,
    delete_priority_class,
    get_priority_class,
    list_priority_classes,
    update_priority_class,
)
from gateway.store.records import Order, PriorityClass, PriorityClassSettings

FIELD = "priority_class"
WRITABLE = frozenset({"rank", "min_share", "preemptible", "max_queue_wait"})
MAX_QUEUE_WAIT = timedelta(days=1)
LISTING = Listing("priorityClasses", FIELDS, str, (Order("rank"),))


class PriorityClasses:
    """The methods of AdminService on priority classes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create(self, request: pb.CreatePriorityClassRequest) -> pb.PriorityClass:
        name = check_slug(request.priority_class_id, "priority_class_id")
        change = self._backend.change(request, request.request_id, validate_only=request.validate_only)
        # What is not set is 0 or false in the message, and that is what it means: a class has no hidden rank.
        settings = edited_class(PriorityClassSettings(), request.priority_class, WRITABLE)
        statement = create_priority_class(self._backend.database, change, name, settings)
        return _to_pb(await self._backend.commit(statement, change, FIELD))

    async def get(self, request: pb.GetPriorityClassRequest) -> pb.PriorityClass:
        name = parse_priority_class(request.name, "name")
        return _to_pb(await self._backend.read(get_priority_class(self._backend.database, name)))

    async def list(self, request: pb.ListPriorityClassesRequest) -> pb.ListPriorityClassesResponse:
        records, token = await self._backend.filtered_page(
            lambda page: list_priority_classes(self._backend.database, page), request, LISTING
        )
        return pb.ListPriorityClassesResponse(priority_classes=map(_to_pb, records), next_page_token=token)

    async def update(self, request: pb.UpdatePriorityClassRequest) -> pb.PriorityClass:
        message = request.priority_class
        name = parse_priority_class(message.name, f"{FIELD}.name")
        fields = changed_fields(request.update_mask, message, FIELD, WRITABLE)
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=message.etag
        )
        statement = update_priority_class(
            self._backend.database, change, name, lambda current: edited_class(current, message, fields)
        )
        return _to_pb(await self._backend.commit(statement, change, FIELD))

    async def delete(self, request: pb.DeletePriorityClassRequest) -> Empty:
        name = parse_priority_class(request.name, "name")
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        await self._backend.read(delete_priority_class(self._backend.database, change, name), FIELD)
        await self._backend.catch_up()
        return Empty()


def edited_class(
    current: PriorityClassSettings, message: pb.PriorityClass, fields: frozenset[str]
) -> PriorityClassSettings:
    """`current` with `fields` taken from `message`. Raises InvalidFieldError."""
    rank, min_share = current.rank, current.min_share
    preemptible, max_queue_wait_ms = current.preemptible, current.max_queue_wait_ms
    if "rank" in fields:
        rank = message.rank
        if rank < 0:
            raise invalid(f"{FIELD}.rank", "must not be negative; the lowest rank, 0, is served first")
    if "min_share" in fields:
        min_share = message.min_share
        if not 0 <= min_share <= 1:
            raise invalid(f"{FIELD}.min_share", "must be from 0 to 1")
    if "preemptible" in fields:
        preemptible = message.preemptible
    if "max_queue_wait" in fields:
        max_queue_wait_ms = _parse_wait(message.max_queue_wait) if message.HasField("max_queue_wait") else None
    return PriorityClassSettings(rank, min_share, preemptible, max_queue_wait_ms)


def _parse_wait(wait: Duration) -> int:
    """In milliseconds, of which it must be a whole number."""
    if wait.nanos % 1_000_000 or not 0 < wait.ToMilliseconds() <= MAX_QUEUE_WAIT / timedelta(milliseconds=1):
        raise invalid(f"{FIELD}.max_queue_wait", "must be from one millisecond to one day, in whole milliseconds")
    return wait.ToMilliseconds()


def _to_pb(record: PriorityClass) -> pb.PriorityClass:
    settings = record.settings
    message = pb.PriorityClass(
        name=record.resource,
        rank=settings.rank,
        min_share=settings.min_share,
        preemptible=settings.preemptible,
        etag=record.etag,
    )
    if settings.max_queue_wait_ms is not None:
        message.max_queue_wait.FromMilliseconds(settings.max_queue_wait_ms)
    return message
