"""Issuers of JSON Web Tokens: from requests to statements, from records to resources.

`issuer` and `organization` say whose tokens these are, and stay as they were made: subjects keep their names, and the
roles that were bound to them.
"""

import re
from collections import abc
from dataclasses import replace

from google.protobuf.empty_pb2 import Empty

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend
from gateway.admin.masks import changed_fields, set_fields
from gateway.admin.names import check_slug, invalid, parse_organization, parse_single
from gateway.admin.values import require_distinct, timestamp
from gateway.auth.claims import CLAIM_MAP_KEYS
from gateway.auth.jwks import ALGORITHMS, uri_problem
from gateway.store.identity import JwtIssuer, JwtIssuerSettings
from gateway.store.issuers import create_issuer, delete_issuer, get_issuer, list_issuers, update_issuer

FIELD = "jwt_issuer"
KIND = "jwtIssuers"
WRITABLE = frozenset({"audiences", "jwks_uri", "algorithms", "claim_map"})
DEFAULT_ALGORITHMS = ("RS256", "ES256")
MAX_TEXT_CHARS = 500
MAX_AUDIENCES = 32
_CLAIM = re.compile(r"[!-~]{1,200}")  # any of ASCII but blanks: names of claims are often URIs


class JwtIssuers:
    """The methods of AdminService on issuers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create(self, request: pb.CreateJwtIssuerRequest) -> pb.JwtIssuer:
        slug, message = check_slug(request.jwt_issuer_id, "jwt_issuer_id"), request.jwt_issuer
        change = self._backend.change(request, request.request_id, validate_only=request.validate_only)
        issuer = _text(message.issuer, f"{FIELD}.issuer")
        organization = None
        if message.organization:
            organization = parse_organization(message.organization, f"{FIELD}.organization").organization
        given = set_fields(message, WRITABLE) | {"audiences", "jwks_uri"}  # which nothing can stand for
        settings = _edited(JwtIssuerSettings(algorithms=DEFAULT_ALGORITHMS), message, given)
        statement = create_issuer(self._backend.database, change, slug, issuer, organization, settings)
        return _to_pb(await self._backend.commit(statement, change, FIELD))

    async def get(self, request: pb.GetJwtIssuerRequest) -> pb.JwtIssuer:
        slug = parse_single(request.name, "name", KIND)
        return _to_pb(await self._backend.read(get_issuer(self._backend.database, slug)))

    async def list(self, request: pb.ListJwtIssuersRequest) -> pb.ListJwtIssuersResponse:
        records, token = await self._backend.page(
            lambda page: list_issuers(self._backend.database, page), request.page_size, request.page_token, KIND
        )
        return pb.ListJwtIssuersResponse(jwt_issuers=map(_to_pb, records), next_page_token=token)

    async def update(self, request: pb.UpdateJwtIssuerRequest) -> pb.JwtIssuer:
        message = request.jwt_issuer
        slug = parse_single(message.name, f"{FIELD}.name", KIND)
        fields = changed_fields(request.update_mask, message, FIELD, WRITABLE)
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=message.etag
        )
        statement = update_issuer(
            self._backend.database, change, slug, lambda current: _edited(current, message, fields)
        )
        return _to_pb(await self._backend.commit(statement, change, FIELD))

    async def delete(self, request: pb.DeleteJwtIssuerRequest) -> Empty:
        slug = parse_single(request.name, "name", KIND)
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        await self._backend.commit(delete_issuer(self._backend.database, change, slug), change, FIELD)
        return Empty()


def _edited(current: JwtIssuerSettings, message: pb.JwtIssuer, fields: frozenset[str]) -> JwtIssuerSettings:
    """`current` with `fields` taken from `message`. Raises InvalidFieldError."""
    edited = current
    if "audiences" in fields:
        edited = replace(edited, audiences=_audiences(message.audiences))
    if "jwks_uri" in fields:
        edited = replace(edited, jwks_uri=_key_set_uri(message.jwks_uri))
    if "algorithms" in fields:
        edited = replace(edited, algorithms=_algorithms(message.algorithms))
    if "claim_map" in fields:
        edited = replace(edited, claim_map=_claim_map(message.claim_map))
    return edited


def _audiences(audiences: abc.Iterable[str]) -> tuple[str, ...]:
    field = f"{FIELD}.audiences"
    distinct = require_distinct(audiences, field)
    if not 0 < len(distinct) <= MAX_AUDIENCES:
        raise invalid(field, f"must have 1 to {MAX_AUDIENCES} entries")
    return tuple(_text(audience, f"{field}[{index}]") for index, audience in enumerate(distinct))


def _key_set_uri(uri: str) -> str:
    problem = uri_problem(_text(uri, f"{FIELD}.jwks_uri"))
    if problem is not None:
        raise invalid(f"{FIELD}.jwks_uri", problem)
    return uri


def _algorithms(algorithms: abc.Iterable[str]) -> tuple[str, ...]:
    field = f"{FIELD}.algorithms"
    distinct = require_distinct(algorithms, field)
    for index, name in enumerate(distinct):
        if name not in ALGORITHMS:
            raise invalid(f"{field}[{index}]", f"must be one of {', '.join(sorted(ALGORITHMS))}")
    return distinct or DEFAULT_ALGORITHMS


def _claim_map(claim_map: abc.Mapping[str, str]) -> dict[str, str]:
    field = f"{FIELD}.claim_map"
    for key, claim in claim_map.items():
        if key not in CLAIM_MAP_KEYS:
            raise invalid(field, f"{key!r} is none of {', '.join(sorted(CLAIM_MAP_KEYS))}")
        if not _CLAIM.fullmatch(claim):
            raise invalid(f"{field}.{key}", "must be the name of a claim")
    return dict(claim_map)


def _text(text: str, field: str) -> str:
    if not 0 < len(text) <= MAX_TEXT_CHARS or not text.isprintable():
        raise invalid(field, f"must have 1 to {MAX_TEXT_CHARS} characters and no control characters")
    return text


def _to_pb(record: JwtIssuer) -> pb.JwtIssuer:
    return pb.JwtIssuer(
        name=record.name,
        uid=str(record.id),
        issuer=record.issuer,
        organization="" if record.organization is None else f"organizations/{record.organization}",
        audiences=record.settings.audiences,
        jwks_uri=record.settings.jwks_uri,
        algorithms=record.settings.algorithms,
        claim_map=dict(record.settings.claim_map),
        etag=record.etag,
        create_time=timestamp(record.created_at),
        update_time=timestamp(record.updated_at),
    )
