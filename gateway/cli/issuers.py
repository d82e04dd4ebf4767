"""`evenflow issuers`: who else may sign credentials, and what their tokens' claims mean."""

from typing import Annotated

import typer
from google.protobuf.field_mask_pb2 import FieldMask

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.errors import UsageError
from gateway.cli.output import Column, OutputFormat, OutputOption, print_many, print_one
from gateway.cli.references import organization_name
from gateway.cli.resources import PAGE_SIZE, YesOption, all_pages, confirm
from gateway.words import short_name

app = typer.Typer(help="Issuers of JSON Web Tokens, which are taken in place of API keys.", no_args_is_help=True)

IssuerArgument = Annotated[str, typer.Argument(metavar="ISSUER", help="A short name for it, such as login.")]
AudienceOption = Annotated[
    list[str] | None, typer.Option("--audience", help="A token's aud must hold one of them; repeatable.")
]
AlgorithmOption = Annotated[
    list[str] | None, typer.Option("--algorithm", help="RS256, PS256, ES256, EdDSA, …; repeatable.")
]
ClaimOption = Annotated[
    list[str] | None,
    typer.Option("--claim", metavar="WHAT=CLAIM", help="Which claim says team, organization, roles or scopes."),
]
KeysOption = Annotated[str | None, typer.Option("--jwks-uri", help="Where its keys are: an https URI.")]
COLUMNS: tuple[Column[pb.JwtIssuer], ...] = (
    Column("ISSUER", lambda item: short_name(item.name)),
    Column("ISS", lambda item: item.issuer),
    Column("ORGANIZATION", lambda item: short_name(item.organization) or "(any)"),
    Column("AUDIENCES", lambda item: ", ".join(item.audiences)),
    Column("ALGORITHMS", lambda item: ", ".join(item.algorithms)),
    Column("CLAIMS", lambda item: ", ".join(f"{key}={claim}" for key, claim in sorted(item.claim_map.items())) or "-"),
    Column("KEYS", lambda item: item.jwks_uri),
)


@app.command()
@admin_command
def create(
    admin: Admin,
    name: IssuerArgument,
    issuer: Annotated[str, typer.Option("--issuer", metavar="ISS", help="The tokens' claim iss, exactly.")],
    jwks_uri: Annotated[str, typer.Option("--jwks-uri", help="Where its keys are: an https URI.")],
    audience: Annotated[list[str], typer.Option("--audience", help="A token's aud must hold one of them.")],
    algorithm: AlgorithmOption = None,
    claim: ClaimOption = None,
    organization: Annotated[
        str | None, typer.Option("--org", metavar="ORG", help="The only organization it speaks for; default any.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Take tokens of an issuer as credentials from now on."""
    item = pb.JwtIssuer(issuer=issuer, organization=organization_name(organization) if organization else "")
    _fill(item, jwks_uri, audience, algorithm, claim)
    request = pb.CreateJwtIssuerRequest(jwt_issuer_id=short_name(issuer_name(name)), jwt_issuer=item)
    print_one(admin.call(admin.stub.CreateJwtIssuer, request), COLUMNS, output)


@app.command("list")
@admin_command
def list_(admin: Admin, output: OutputOption = OutputFormat.TABLE) -> None:
    """List all issuers."""

    def fetch(token: str) -> tuple[list[pb.JwtIssuer], str]:
        page = admin.call(admin.stub.ListJwtIssuers, pb.ListJwtIssuersRequest(page_size=PAGE_SIZE, page_token=token))
        return list(page.jwt_issuers), page.next_page_token

    print_many(all_pages(fetch), COLUMNS, output)


@app.command()
@admin_command
def show(admin: Admin, name: IssuerArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show one issuer."""
    request = pb.GetJwtIssuerRequest(name=issuer_name(name))
    print_one(admin.call(admin.stub.GetJwtIssuer, request), COLUMNS, output)


@app.command()
@admin_command
def update(
    admin: Admin,
    name: IssuerArgument,
    jwks_uri: KeysOption = None,
    audience: AudienceOption = None,
    algorithm: AlgorithmOption = None,
    claim: ClaimOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change an issuer. A list that is given replaces the old one as a whole."""
    changed = pb.JwtIssuer(name=issuer_name(name))
    mask = _fill(changed, jwks_uri, audience, algorithm, claim)
    if not mask.paths:
        raise UsageError("nothing to change: see evenflow issuers update --help")
    request = pb.UpdateJwtIssuerRequest(jwt_issuer=changed, update_mask=mask)
    print_one(admin.call(admin.stub.UpdateJwtIssuer, request), COLUMNS, output)


@app.command()
@admin_command
def delete(admin: Admin, name: IssuerArgument, yes: YesOption = False) -> None:
    """Refuse an issuer's tokens from now on."""
    request = pb.DeleteJwtIssuerRequest(name=issuer_name(name))
    confirm(f"Refuse all tokens of {short_name(request.name)}?", yes=yes)
    admin.call(admin.stub.DeleteJwtIssuer, request)


def issuer_name(text: str) -> str:
    """`jwtIssuers/login` of `login`."""
    return f"jwtIssuers/{text.removeprefix('jwtIssuers/')}"


def _fill(
    item: pb.JwtIssuer,
    jwks_uri: str | None,
    audiences: list[str] | None,
    algorithms: list[str] | None,
    claims: list[str] | None,
) -> FieldMask:
    """`item` holds what was given; returns the fields that were. Raises UsageError."""
    mask = FieldMask()
    if jwks_uri is not None:
        item.jwks_uri = jwks_uri
        mask.paths.append("jwks_uri")
    for field, values in (("audiences", audiences), ("algorithms", algorithms)):
        if values is not None:
            getattr(item, field).extend(values)
            mask.paths.append(field)
    if claims is not None:
        mask.paths.append("claim_map")
        for text in claims:
            what, equals, claim = text.partition("=")
            if not equals:
                raise UsageError(f"{text!r} maps nothing: write team=CLAIM")
            item.claim_map[what] = claim
    return mask
