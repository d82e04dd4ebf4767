"""Keys as forms have them: scopes and lifetimes to choose from, and the way to the resource and back."""

from collections import abc
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from uuid_utils import uuid7

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.api_keys import DEFAULT_SCOPES, PLATFORM_SCOPES, TEAM_SCOPES
from gateway.api_key import NEVER_EXPIRES
from gateway.console.forms import Form
from gateway.errors import FieldViolation, InvalidFieldError

FIELD_BY_PATH = {
    "api_key.display_name": "display_name",
    "api_key.scopes": "scopes",
    "api_key.model_grants": "models",
    "api_key.priority_class_grants": "classes",
    "api_key.ip_cidrs": "cidrs",
    "api_key.expire_time": "lifetime",
    "reason": "reason",
    "grace": "grace",
}
LIFETIMES = (
    ("1", "one day"),
    ("7", "a week"),
    ("30", "30 days"),
    ("90", "90 days"),
    ("365", "a year"),
    ("never", "no end"),
)
DEFAULT_LIFETIME = "90"
MAX_TIME_CHARS = 11
SCOPE_TEXTS = {
    "inference": "generate",
    "quota.read": "see its own limits",
    "admin": "everything that administrators do",
    "admin.read": "read tenants, policies and use, this console among them",
    "admin.tenancy": "change organizations and teams",
    "admin.keys": "make, change and revoke keys",
    "admin.quota": "change limits and weights",
    "admin.roles": "give and take roles",
    "admin.operate": "end what runs",
    "admin.system": "change classes, issuers and the scheduling policy",
}


@dataclass(frozen=True, slots=True)
class KeyWords:
    """What a key's page says of it. `state` is `active`, `revoked`, `expired` or `deleted`."""

    state: str
    live_secrets: abc.Sequence[pb.ApiKeySecret]

    @property
    def is_live(self) -> bool:
        return self.state == "active"

    @property
    def has_two_secrets(self) -> bool:
        return len(self.live_secrets) > 1


def words_of(key: pb.ApiKey) -> KeyWords:
    return KeyWords(state_of(key), key.secrets)


def state_of(key: pb.ApiKey) -> str:
    if key.HasField("delete_time"):
        return "deleted"
    if key.HasField("revoke_time"):
        return "revoked"
    return "expired" if key.HasField("expire_time") and _is_past(key.expire_time) else "active"


def scopes_for(*, is_platform: bool) -> list[tuple[str, str]]:
    """Those that such a key can have, each with what it is for."""
    names = PLATFORM_SCOPES if is_platform else TEAM_SCOPES
    return [(name.value, SCOPE_TEXTS[name.value]) for name in names]


def message_of(form: Form) -> pb.ApiKey:
    """But for its end and its name."""
    return pb.ApiKey(
        display_name=form.text("display_name"),
        scopes=form.all("scopes"),
        model_grants=form.words("models"),
        priority_class_grants=[f"priorityClasses/{slug}" for slug in form.all("classes")],
        ip_cidrs=form.words("cidrs"),
    )


def expiry_of(form: Form) -> Timestamp:
    """So many days after the form was asked for, so that sent twice it asks for the same; `never` is the last second.

    Raises InvalidFieldError for what is no choice of ours.
    """
    days, stamp = form.text("lifetime"), Timestamp()
    if days not in dict(LIFETIMES):
        raise InvalidFieldError(FieldViolation("api_key.expire_time", "choose one of the times that are offered"))
    if days == "never":
        stamp.FromDatetime(NEVER_EXPIRES)
    else:
        stamp.FromDatetime(_asked_at(form) + timedelta(days=int(days)))
    return stamp


def new_form(*, is_platform: bool) -> Form:
    """What a key gets unless somebody says otherwise."""
    return Form(
        {
            "request_id": [str(uuid7())],
            "asked": [str(int(datetime.now(UTC).timestamp()))],
            "lifetime": [DEFAULT_LIFETIME],
            "scopes": ["admin"] if is_platform else [scope.value for scope in DEFAULT_SCOPES],
        }
    )


def form_of(key: pb.ApiKey) -> Form:
    """The key as it is; its end is left alone unless the form says otherwise."""
    return Form(
        {
            "display_name": [key.display_name],
            "scopes": list(key.scopes),
            "models": [" ".join(key.model_grants)],
            "classes": [name.rpartition("/")[2] for name in key.priority_class_grants],
            "cidrs": [" ".join(key.ip_cidrs)],
            "etag": [key.etag],
        }
    )


def _asked_at(form: Form) -> datetime:
    """Not in the future, and not longer ago than a page is open."""
    text, now = form.text("asked"), datetime.now(UTC)
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_TIME_CHARS):
        return now
    asked = datetime.fromtimestamp(int(text), UTC)
    return asked if now - timedelta(days=1) <= asked <= now else now


def _is_past(stamp: Timestamp) -> bool:
    return stamp.ToDatetime(UTC) <= datetime.now(UTC)
