"""Statements on temporary grants of quota. A grant counts as a change of its policy, so that every gateway reads it."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from uuid_utils.compat import uuid7

from gateway.quota_terms import Calendar
from gateway.store.audit import Document, document_of
from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.enums import Dimension
from gateway.store.errors import InvalidValueError, NotFoundError, PreconditionFailedError
from gateway.store.policy_models import QuotaGrantRow
from gateway.store.quota_parts import grants_of, settings_of
from gateway.store.quota_policies import policy_at, policy_record
from gateway.store.records import QuotaLimit, QuotaPolicy, QuotaPolicySettings, ResourcePath, etag_of

MAX_GRANTS = 64  # of one policy, at a time


@dataclass(frozen=True, slots=True)
class NewGrant:
    """What is raised, to what, until when and why; see `QuotaGrant`."""

    dimension: Dimension | None
    calendar: Calendar | None
    model: str
    amount: int
    burst: int | None
    expires_at: datetime
    reason: str


async def grant_quota(
    database: Database, change: Change, path: ResourcePath, slug: str, grant: NewGrant
) -> QuotaPolicy:
    """The limit or budget is raised. A retry returns the policy as it is.

    Raises NotFoundError, InvalidValueError (the policy has no such limit, or one that is as high; the end has passed),
    RequestIdReusedError, PreconditionFailedError (it has too many).
    """
    async with open_change(database, change) as tx:
        row = await policy_at(tx.session, path, slug)
        if await tx.find_replayed() is not None:
            return policy_record(row, path)
        _require_higher(settings_of(row), grant)
        if grant.expires_at <= tx.now:
            raise InvalidValueError("expire_time", "has passed")
        if sum(each.expires_at > tx.now for each in row.grants) >= MAX_GRANTS:
            raise PreconditionFailedError(path.name, f"has {MAX_GRANTS} temporary quotas: end one of them first")
        made = _row(grant, row.id, tx)
        tx.session.add(made)
        before = _document(row.grants)
        row.revision, row.updated_at = tx.revision, tx.now
        after = _document([*row.grants, made])
        name = f"{path.name}/quotaPolicies/{slug}"
        await tx.record(Changed("quotaPolicies.grantTemporaryQuota", name, row.id, before, after))
        await tx.session.refresh(row, ["grants"])
        return policy_record(row, path)


async def end_grant(database: Database, change: Change, path: ResourcePath, slug: str, grant: UUID) -> QuotaPolicy:
    """The limit or budget is what it was before the grant. A retry returns the policy as it is.

    Raises NotFoundError (of the policy, or of a grant of it that has not ended), StoreConflictError,
    RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await policy_at(tx.session, path, slug)
        if await tx.find_replayed() is not None:
            return policy_record(row, path)
        name = f"{path.name}/quotaPolicies/{slug}"
        tx.require_etag(name, etag_of(row.revision))
        ended = next((each for each in row.grants if each.id == grant), None)
        if ended is None:
            raise NotFoundError(f"{name}/temporaryQuotas/{grant}")
        before, after = _document(row.grants), _document([each for each in row.grants if each is not ended])
        row.revision, row.updated_at = tx.revision, tx.now
        await tx.session.delete(ended)
        await tx.record(Changed("quotaPolicies.endTemporaryQuota", name, row.id, before, after))
        await tx.session.refresh(row, ["grants"])
        return policy_record(row, path)


def _row(grant: NewGrant, policy_id: UUID, tx: ChangeTransaction) -> QuotaGrantRow:
    return QuotaGrantRow(
        id=uuid7(),
        policy_id=policy_id,
        dimension=grant.dimension,
        calendar=grant.calendar,
        model=grant.model,
        amount=grant.amount,
        burst=grant.burst,
        expires_at=grant.expires_at,
        reason=grant.reason,
        creator=tx.change.actor,
        created_at=tx.now,
    )


def _require_higher(settings: QuotaPolicySettings, grant: NewGrant) -> None:
    amount: int | None
    if grant.calendar is not None:
        field, kind = "window", f"budget per {grant.calendar.lower()}"
        budgets = {(budget.calendar, budget.model): budget.amount for budget in settings.budgets}
        amount = budgets.get((grant.calendar, grant.model))
    else:
        field, kind = "dimension", f"limit on {str(grant.dimension).lower()}"
        amount = next((limit.amount for limit in settings.limits if _is_of(limit, grant)), None)
    if amount is None:
        raise InvalidValueError(field, f"the policy has no {kind} of {grant.model or 'all models'}")
    if grant.amount <= amount:
        raise InvalidValueError("limit", f"the {kind} is {amount} already")


def _is_of(limit: QuotaLimit, grant: NewGrant) -> bool:
    return limit.dimension is grant.dimension and limit.model == grant.model


def _document(rows: list[QuotaGrantRow]) -> Document:
    return {"temporary_quotas": [dict(document_of(grant)) for grant in grants_of(rows)]}
