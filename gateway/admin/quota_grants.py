"""Temporary grants: a limit or budget of a policy that is higher until a time, and then what it was again."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend
from gateway.admin.names import invalid, parse_quota_policy
from gateway.admin.quota_budgets import MAX_AMOUNT, parse_budget, parse_model
from gateway.admin.quota_policies import policy_to_pb
from gateway.admin.quota_values import DIMENSION_BY_PB
from gateway.admin.values import parse_time
from gateway.store.enums import Dimension
from gateway.store.grants import NewGrant, end_grant, grant_quota

MAX_LENGTH = timedelta(days=366)
MAX_REASON_CHARS = 200


class QuotaGrants:
    """The methods of AdminService on temporary quota."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def grant(self, request: pb.GrantTemporaryQuotaRequest) -> pb.QuotaPolicy:
        path, slug = parse_quota_policy(request.name, "name")
        change = self._backend.change(request, request.request_id, validate_only=request.validate_only)
        grant = _parse(request)
        statement = grant_quota(self._backend.database, change, path, slug, grant)
        return policy_to_pb(await self._backend.commit(statement, change, request.WhichOneof("raised") or ""))

    async def end(self, request: pb.EndTemporaryQuotaRequest) -> pb.QuotaPolicy:
        path, slug = parse_quota_policy(request.name, "name")
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        statement = end_grant(self._backend.database, change, path, slug, _parse_uid(request.uid))
        return policy_to_pb(await self._backend.commit(statement, change, ""))


def _parse(request: pb.GrantTemporaryQuotaRequest) -> NewGrant:
    expires_at = _parse_end(request)
    reason = request.reason
    if not 1 <= len(reason) <= MAX_REASON_CHARS or not reason.isprintable():
        raise invalid("reason", f"must be 1 to {MAX_REASON_CHARS} characters in one line")
    match request.WhichOneof("raised"):
        case "budget":
            budget = parse_budget(request.budget, "budget")
            return NewGrant(None, budget.calendar, budget.model, budget.amount, None, expires_at, reason)
        case "limit":
            return _parse_limit(request.limit, expires_at, reason)
    raise invalid("limit", "say which limit or budget is raised, and to what")


def _parse_uid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise invalid("uid", "must be that of one of the policy's temporary quotas") from None


def _parse_limit(limit: pb.QuotaLimit, expires_at: datetime, reason: str) -> NewGrant:
    dimension = DIMENSION_BY_PB.get(limit.dimension)
    if dimension is None:
        raise invalid("limit.dimension", "must be one of those that are counted")
    if not 1 <= limit.limit <= MAX_AMOUNT:
        raise invalid("limit.limit", f"must be from 1 to {MAX_AMOUNT}")
    if limit.HasField("period"):
        raise invalid("limit.period", "stays what it is: leave it out")
    if not 0 <= limit.burst <= MAX_AMOUNT or (limit.burst and dimension is Dimension.CONCURRENCY):
        raise invalid("limit.burst", f"must be from 1 to {MAX_AMOUNT}, and concurrency has none")
    model = parse_model(limit.model, "limit.model")
    return NewGrant(dimension, None, model, limit.limit, limit.burst or None, expires_at, reason)


def _parse_end(request: pb.GrantTemporaryQuotaRequest) -> datetime:
    if not request.HasField("expire_time"):
        raise invalid("expire_time", "must be set: a grant has an end")
    expires_at, now = parse_time(request.expire_time, "expire_time"), datetime.now(UTC)
    if not now < expires_at <= now + MAX_LENGTH:
        raise invalid("expire_time", f"must be in the future, at most {MAX_LENGTH.days} days from now")
    return expires_at
