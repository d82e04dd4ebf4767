"""What ends a key or one of its secrets: revocation, deletion, rotation.

Who rotates gets the new secret once, in the first answer: a retry under the same `request_id` returns the same key
without it, and the old secret works until its grace time is over, so that a lost answer costs nobody an outage. To try
again, `discard_newest` ends the secret that nobody has.
"""

from collections import abc
from datetime import timedelta
from uuid import UUID

from evenflow.admin.v1 import admin_pb2 as pb
from gateway import api_key
from gateway.admin.api_keys import FIELD, key_to_pb
from gateway.admin.backend import Backend
from gateway.admin.names import invalid, parse_any_api_key
from gateway.admin.values import parse_reason
from gateway.pepper import Peppers
from gateway.store.key_ends import Rotation, delete_key, revoke_key, rotate_key, undelete_key
from gateway.store.records import KeySecret

DEFAULT_GRACE = timedelta(hours=24)
MAX_GRACE = timedelta(days=30)

AbortKey = abc.Callable[[UUID], abc.Awaitable[None]]
"""Cancels what the key with this id has running on this gateway."""


class KeyEnds:
    """The methods of AdminService that end keys and secrets."""

    def __init__(self, backend: Backend, pepper: bytes, abort_key: AbortKey) -> None:
        self._backend = backend
        self._peppers = Peppers.parse(pepper)
        self._abort_key = abort_key

    async def revoke(self, request: pb.RevokeApiKeyRequest) -> pb.ApiKey:
        """The other gateways end what the key has running as soon as they hear of the change."""
        path = parse_any_api_key(request.name, "name")
        reason = parse_reason(request.reason, "reason")
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        statement = revoke_key(self._backend.database, change, path, reason, aborts_inflight=request.abort_inflight)
        record = await self._backend.commit(statement, change, FIELD)
        if request.abort_inflight and not request.validate_only:
            await self._abort_key(record.id)
        return key_to_pb(record)

    async def delete(self, request: pb.DeleteApiKeyRequest) -> pb.ApiKey:
        path = parse_any_api_key(request.name, "name")
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        return key_to_pb(await self._backend.commit(delete_key(self._backend.database, change, path), change, FIELD))

    async def undelete(self, request: pb.UndeleteApiKeyRequest) -> pb.ApiKey:
        path = parse_any_api_key(request.name, "name")
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        return key_to_pb(await self._backend.commit(undelete_key(self._backend.database, change, path), change, FIELD))

    async def rotate(self, request: pb.RotateApiKeyRequest) -> pb.ApiKey:
        path = parse_any_api_key(request.name, "name")
        grace = _parse_grace(request)
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        secret = api_key.generate().secret
        fresh = KeySecret(self._peppers.digest(secret), self._peppers.version)
        rotation = Rotation(fresh, grace, request.discard_newest)
        record = await self._backend.commit(rotate_key(self._backend.database, change, path, rotation), change, FIELD)
        answer = key_to_pb(record)
        is_new = any(known.digest == fresh.digest for known in record.secrets)  # a retry's secret is not stored
        if is_new and not change.validate_only:
            answer.secret = api_key.format_key(record.path.api_key or "", secret)
        return answer


def _parse_grace(request: pb.RotateApiKeyRequest) -> timedelta:
    if not request.HasField("grace"):
        return DEFAULT_GRACE
    try:
        grace = request.grace.ToTimedelta()
    except (ValueError, OverflowError) as error:
        raise invalid("grace", "is no length of time") from error
    if not timedelta() <= grace <= MAX_GRACE:
        raise invalid("grace", f"must be from 0 to {MAX_GRACE.days} days")
    return grace
