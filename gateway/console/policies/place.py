"""Where the policy of a node is looked at and changed, and who may do either."""

from dataclasses import dataclass

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.visit import Visit
from gateway.errors import NotFoundError
from gateway.interceptors.resources import parent_of
from gateway.store.identity import PLATFORM
from gateway.store.records import ANY, DEFAULT_POLICY, ResourcePath
from gateway.words import short_name

ORGANIZATION_PATH = "/tenants/{org}/-/policy"
TEAM_PATH = "/tenants/{org}/{team}/policy"
KEY_PATH = "/tenants/{org}/{team}/keys/{key}/policy"
PATHS = (ORGANIZATION_PATH, KEY_PATH, TEAM_PATH)


@dataclass(frozen=True, slots=True)
class PolicyPlace:
    """The organization, team or key that a policy governs."""

    node: ResourcePath

    @classmethod
    def of(cls, visit: Visit) -> "PolicyPlace":
        """That of the page. Raises NotFoundError."""
        segments = visit.request.path_params
        if ANY in segments.values():  # it would be any organization, team or key
            raise NotFoundError("this page")
        return cls(ResourcePath(segments["org"], segments.get("team"), segments.get("key")))

    @property
    def has_weight(self) -> bool:
        """Keys share nothing among themselves."""
        return self.node.api_key is None

    @property
    def short(self) -> str:
        """`acme/search`"""
        return short_name(self.node.name)

    @property
    def kind(self) -> str:
        if self.node.api_key is not None:
            return "key"
        return "organization" if self.node.team is None else "team"

    @property
    def page(self) -> str:
        """The page of the policy, below ROOT."""
        path = ORGANIZATION_PATH if self.node.team is None else TEAM_PATH if self.has_weight else KEY_PATH
        return path.format(org=self.node.organization, team=self.node.team, key=self.node.api_key)

    @property
    def crumbs(self) -> list[tuple[str, str]]:
        """The pages above it: titles, and paths below ROOT."""
        links = [("Tenants", "/tenants"), (str(self.node.organization), f"/tenants/{self.node.organization}")]
        if self.node.team is not None:
            links.append((self.node.team, f"/tenants/{self.node.organization}/{self.node.team}"))
        if self.node.api_key is not None:
            links.append((self.node.api_key, self.page.removesuffix("/policy")))
        return links

    def may_change(self, visit: Visit) -> bool:
        """What governs a node belongs to those above it."""
        return visit.may(Action.MANAGE_QUOTA, parent_of(self.node))

    async def read(self, visit: Visit) -> pb.QuotaPolicy:
        """The policy; of a key that has none yet one without an etag, as it would begin. Raises GatewayError."""
        request = pb.ListQuotaPoliciesRequest(parent=self.node.name)
        found = await visit.call(AdminServicer.ListQuotaPolicies, request)
        if found.quota_policies:
            return found.quota_policies[0]
        return pb.QuotaPolicy(
            name=f"{self.node.name}/quotaPolicies/{DEFAULT_POLICY}",
            mode=pb.QUOTA_MODE_ENFORCE,
            on_store_loss=pb.STORE_LOSS_ACTION_SERVE_STALE,
            time_zone="UTC",
        )


def may_preview(visit: Visit) -> bool:
    """A preview shows what everybody's requests would have met."""
    return visit.may(Action.READ, PLATFORM)
