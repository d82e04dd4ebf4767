"""Issuers as resources of the admin service: who may keep them, and what they may be."""

from collections import abc
from pathlib import Path

import pytest
import pytest_asyncio

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.store.db import Database
from tests.admin.service import AdminService, serve_admin
from tests.auth.test_delegation import ACME, answer, holder


@pytest_asyncio.fixture
async def service(database: Database, database_url: str, tmp_path: Path) -> abc.AsyncIterator[AdminService]:
    """With the team acme/search."""
    async with serve_admin(database, database_url, tmp_path / "data") as running:
        await running.create_org()
        await running.create_team()
        yield running


async def test_issuers_are_made_read_changed_and_deleted_by_the_platform_only(service: AdminService) -> None:
    stub, boss = service.stub, await holder(service, pb.ROLE_ORG_ADMIN, ACME)
    issuer = pb.JwtIssuer(
        issuer="https://login.example.test/",
        audiences=["evenflow"],
        jwks_uri="https://login.example.test/keys",
        claim_map={"team": "team"},
    )
    create = pb.CreateJwtIssuerRequest(jwt_issuer_id="login", jwt_issuer=issuer)
    assert await answer(service, stub.CreateJwtIssuer, create, boss) == "PERMISSION_DENIED SCOPE_NOT_GRANTED"

    made = await service.call(stub.CreateJwtIssuer, create)
    update = pb.UpdateJwtIssuerRequest(jwt_issuer=pb.JwtIssuer(name=made.name, algorithms=["EdDSA"], etag=made.etag))
    changed = await service.call(stub.UpdateJwtIssuer, update)
    listed = await service.call(stub.ListJwtIssuers, pb.ListJwtIssuersRequest())
    stale = await service.refused(stub.DeleteJwtIssuer, pb.DeleteJwtIssuerRequest(name=made.name, etag=made.etag))
    await service.call(stub.DeleteJwtIssuer, pb.DeleteJwtIssuerRequest(name=made.name, etag=changed.etag))
    again = await service.call(stub.CreateJwtIssuer, create)

    assert (made.name, list(made.algorithms), dict(made.claim_map)) == (
        "jwtIssuers/login",
        ["RS256", "ES256"],
        {"team": "team"},
    )
    assert (list(changed.algorithms), list(listed.jwt_issuers)) == (["EdDSA"], [changed])
    assert stale.reason == "ETAG_MISMATCH"
    assert again.uid != made.uid


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"issuer": ""}, "jwt_issuer.issuer"),
        ({"audiences": []}, "jwt_issuer.audiences"),
        ({"jwks_uri": "http://login.example.test/keys"}, "jwt_issuer.jwks_uri"),
        ({"jwks_uri": "file:///etc/passwd"}, "jwt_issuer.jwks_uri"),
        ({"algorithms": ["HS256"]}, "jwt_issuer.algorithms[0]"),
        ({"algorithms": ["none"]}, "jwt_issuer.algorithms[0]"),
        ({"claim_map": {"tenant": "x"}}, "jwt_issuer.claim_map"),
        ({"claim_map": {"team": ""}}, "jwt_issuer.claim_map.team"),
        ({"organization": "acme"}, "jwt_issuer.organization"),
    ],
)
async def test_an_issuer_that_cannot_be_is_refused_with_the_field(
    service: AdminService, fields: dict[str, object], field: str
) -> None:
    good = {"issuer": "https://x.test", "audiences": ["a"], "jwks_uri": "https://x.test/keys"}
    request = pb.CreateJwtIssuerRequest(jwt_issuer_id="x", jwt_issuer=pb.JwtIssuer(**(good | fields)))

    refused = await service.refused(service.stub.CreateJwtIssuer, request)

    assert (refused.code, refused.fields) == ("INVALID_ARGUMENT", (field,))
