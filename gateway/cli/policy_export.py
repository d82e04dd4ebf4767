"""Policies that are in force, as a file that `quota-policies apply` reads and that would change nothing.

The inverse of `policy_fields`. What has its default is left out, so that a file holds what somebody has decided; lists
that are empty are left out, too.
"""

from collections import abc

import yaml

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin
from gateway.cli.limits import budget_text, limit_text
from gateway.cli.quota_policies import list_policies
from gateway.cli.references import organization_name
from gateway.cli.resources import PAGE_SIZE, all_pages
from gateway.durations import duration_text
from gateway.words import short_name

Fields = dict[str, object]

DEFAULT_CLASS = "priorityClasses/default"
QUOTA_DEFAULTS: Fields = {
    "weight": 1,
    "mode": "enforce",
    "reservation": "unspecified",
    "time_zone": "UTC",
    "on_store_loss": "serve-stale",
}
WIDTH = 120


def export_text(admin: Admin, organization: str | None) -> str:
    """The file, of everything or of one organization. Raises UsageError, grpc.RpcError."""
    root: Fields = {}
    if organization is None and (classes := {short_name(each.name): class_fields(each) for each in _classes(admin)}):
        root["priority_classes"] = classes
    name = organization_name(organization or "-")
    policies = {policy.name.partition("/quotaPolicies/")[0]: policy for policy in _policies(admin, name)}
    organizations = _organizations(admin) if organization is None else [_organization(admin, name)]
    teams = _teams(admin, name)
    found: Fields = {}
    for each in organizations:
        below = f"{each.name}/teams/"
        named = {
            team.name.removeprefix(below): team_fields(team, policies) for team in teams if team.name.startswith(below)
        }
        fields = organization_fields(each, _quota(policies, each.name))
        found[short_name(each.name)] = fields | ({"teams": named} if named else {})
    if found:
        root["organizations"] = found
    return yaml.safe_dump(root, sort_keys=False, allow_unicode=True, width=WIDTH) if root else ""


def class_fields(message: pb.PriorityClass) -> Fields:
    """All of a class: it has few fields, and none that can be guessed."""
    fields: Fields = {"rank": message.rank, "min_share": message.min_share, "preemptible": message.preemptible}
    if message.HasField("max_queue_wait"):
        fields["max_queue_wait"] = duration_text(message.max_queue_wait.ToTimedelta())
    return fields


def organization_fields(message: pb.Organization | pb.Team, quota: Fields) -> Fields:
    """Of an organization, or what a team has in common with one."""
    fields: Fields = {}
    if message.display_name:
        fields["display_name"] = message.display_name
    if message.state == pb.STATE_SUSPENDED:
        fields["state"] = "suspended"
    return fields | ({"quota": quota} if quota else {})


def team_fields(message: pb.Team, policies: abc.Mapping[str, pb.QuotaPolicy]) -> Fields:
    """Of a team with the policies of its keys."""
    fields = organization_fields(message, _quota(policies, message.name))
    if message.default_priority_class != DEFAULT_CLASS:
        fields["default_class"] = short_name(message.default_priority_class)
    if message.priority_class_grants:
        fields["classes"] = [short_name(name) for name in message.priority_class_grants]
    if message.durable_usage:
        fields["durable_usage"] = True
    if message.shares_prefix_cache:
        fields["shares_prefix_cache"] = True
    if message.speculation_disabled:
        fields["speculation_disabled"] = True
    below = f"{message.name}/apiKeys/"
    keys = {name.removeprefix(below): quota_fields(policies[name]) for name in policies if name.startswith(below)}
    return fields | ({"keys": {key: {"quota": quota} for key, quota in keys.items()}} if keys else {})


def quota_fields(policy: pb.QuotaPolicy) -> Fields:
    """Of a policy, without what grants have raised for a time."""
    fields = {
        "weight": policy.weight,
        "mode": _word(pb.QuotaMode.Name(policy.mode), "QUOTA_MODE_"),
        "limits": [limit_text(limit) for limit in policy.limits],
        "budgets": [budget_text(budget) for budget in policy.budgets],
        "cost_weights": {each.model or "*": _prices(each) for each in policy.cost_weights},
        "reservation": _word(pb.ReservationMode.Name(policy.reservation), "RESERVATION_MODE_"),
        "time_zone": policy.time_zone,
        "strict": policy.strict,
        "on_store_loss": _word(pb.StoreLossAction.Name(policy.on_store_loss), "STORE_LOSS_ACTION_"),
        "max_overdraft": policy.max_overdraft,
    }
    return {name: value for name, value in fields.items() if value and value != QUOTA_DEFAULTS.get(name)}


def _quota(policies: abc.Mapping[str, pb.QuotaPolicy], node: str) -> Fields:
    return quota_fields(policies[node]) if node in policies else {}


def _prices(weights: pb.CostWeights) -> Fields:
    return {
        "input_token": weights.input_token,
        "cached_input_token": weights.cached_input_token,
        "output_token": weights.output_token,
    }


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower().replace("_", "-")


def _classes(admin: Admin) -> list[pb.PriorityClass]:
    def fetch(token: str) -> tuple[list[pb.PriorityClass], str]:
        request = pb.ListPriorityClassesRequest(page_size=PAGE_SIZE, page_token=token)
        page = admin.call(admin.stub.ListPriorityClasses, request)
        return list(page.priority_classes), page.next_page_token

    return all_pages(fetch)


def _organizations(admin: Admin) -> list[pb.Organization]:
    def fetch(token: str) -> tuple[list[pb.Organization], str]:
        request = pb.ListOrganizationsRequest(page_size=PAGE_SIZE, page_token=token)
        page = admin.call(admin.stub.ListOrganizations, request)
        return list(page.organizations), page.next_page_token

    return all_pages(fetch)


def _organization(admin: Admin, name: str) -> pb.Organization:
    return admin.call(admin.stub.GetOrganization, pb.GetOrganizationRequest(name=name))


def _teams(admin: Admin, organization: str) -> list[pb.Team]:
    def fetch(token: str) -> tuple[list[pb.Team], str]:
        request = pb.ListTeamsRequest(parent=organization, page_size=PAGE_SIZE, page_token=token)
        page = admin.call(admin.stub.ListTeams, request)
        return list(page.teams), page.next_page_token

    return all_pages(fetch)


def _policies(admin: Admin, organization: str) -> list[pb.QuotaPolicy]:
    """All of an organization's, its teams' and their keys'."""
    parents = (organization, f"{organization}/teams/-", f"{organization}/teams/-/apiKeys/-")
    return [policy for parent in parents for policy in list_policies(admin, parent)]
