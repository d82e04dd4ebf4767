"""Quota policies: from requests to statements, from records to resources. Values are checked in `quota_values`."""

from google.protobuf.empty_pb2 import Empty

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend, Listing
from gateway.admin.masks import changed_fields, set_fields
from gateway.admin.names import check_slug, parse_node, parse_quota_policy
from gateway.admin.quota_budgets import budget_to_pb, cost_to_pb, grant_to_pb, reservation_to_pb
from gateway.admin.quota_values import FIELD, WRITABLE, edited, limit_to_pb
from gateway.admin.values import timestamp
from gateway.store.quota_policies import (
    FIELDS,
    create_quota_policy,
    delete_quota_policy,
    get_quota_policy,
    list_quota_policies,
    update_quota_policy,
)
from gateway.store.records import QuotaPolicy, QuotaPolicySettings


class QuotaPolicies:
    """The methods of AdminService on quota policies."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create(self, request: pb.CreateQuotaPolicyRequest) -> pb.QuotaPolicy:
        path = parse_node(request.parent, "parent")
        slug = check_slug(request.quota_policy_id, "quota_policy_id")
        change = self._backend.change(request, request.request_id, validate_only=request.validate_only)
        fresh = QuotaPolicySettings(weight=None if path.api_key else 1.0)
        settings = edited(fresh, request.quota_policy, set_fields(request.quota_policy, WRITABLE))
        statement = create_quota_policy(self._backend.database, change, path, slug, settings)
        return policy_to_pb(await self._backend.commit(statement, change, FIELD))

    async def get(self, request: pb.GetQuotaPolicyRequest) -> pb.QuotaPolicy:
        path, slug = parse_quota_policy(request.name, "name")
        return policy_to_pb(await self._backend.read(get_quota_policy(self._backend.database, path, slug)))

    async def list(self, request: pb.ListQuotaPoliciesRequest) -> pb.ListQuotaPoliciesResponse:
        parent = parse_node(request.parent, "parent", wildcards=True)
        records, token = await self._backend.filtered_page(
            lambda page: list_quota_policies(self._backend.database, parent, page),
            request,
            Listing(f"{parent.name}/quotaPolicies", FIELDS),
        )
        return pb.ListQuotaPoliciesResponse(quota_policies=map(policy_to_pb, records), next_page_token=token)

    async def update(self, request: pb.UpdateQuotaPolicyRequest) -> pb.QuotaPolicy:
        message = request.quota_policy
        path, slug = parse_quota_policy(message.name, f"{FIELD}.name")
        fields = changed_fields(request.update_mask, message, FIELD, WRITABLE)
        if path.api_key is not None and not message.weight:
            fields -= {"weight"}  # `*` names it too, and a key's policy has none
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=message.etag
        )
        statement = update_quota_policy(
            self._backend.database,
            change,
            path,
            slug,
            lambda current: edited(current, message, fields),
        )
        return policy_to_pb(await self._backend.commit(statement, change, FIELD))

    async def delete(self, request: pb.DeleteQuotaPolicyRequest) -> Empty:
        path, slug = parse_quota_policy(request.name, "name")
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        await self._backend.read(delete_quota_policy(self._backend.database, change, path, slug), FIELD)
        await self._backend.catch_up()
        return Empty()


def policy_to_pb(record: QuotaPolicy) -> pb.QuotaPolicy:
    """The resource."""
    settings = record.settings
    return pb.QuotaPolicy(
        name=f"{record.path.name}/quotaPolicies/{record.slug}",
        uid=str(record.id),
        mode=pb.QuotaMode.Value(f"QUOTA_MODE_{settings.mode}"),
        weight=settings.weight or 0.0,
        limits=map(limit_to_pb, settings.limits),
        on_store_loss=pb.StoreLossAction.Value(f"STORE_LOSS_ACTION_{settings.on_store_loss}"),
        max_overdraft=settings.max_overdraft,
        strict=settings.strict,
        etag=record.etag,
        create_time=timestamp(record.created_at),
        update_time=timestamp(record.updated_at),
        revision=record.revision,
        reservation=reservation_to_pb(settings.reservation),
        time_zone=settings.time_zone,
        budgets=map(budget_to_pb, settings.budgets),
        cost_weights=map(cost_to_pb, settings.costs),
        temporary_quotas=map(grant_to_pb, record.grants),
    )
