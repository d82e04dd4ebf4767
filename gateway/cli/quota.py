"""`evenflow quota`: raise a limit for a while, what limits refused, and what is left of a key's own."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import grpc
import typer
from google.protobuf.timestamp_pb2 import Timestamp

from evenflow.admin.v1 import admin_pb2 as pb
from evenflow.inference.v1 import quota_pb2
from evenflow.inference.v1.quota_pb2_grpc import QuotaServiceStub
from gateway.cli.chat import ApiKeyOption
from gateway.cli.command import AddressOption, Admin, DataDirOption, admin_command, command
from gateway.cli.connection import CALL_TIMEOUT_S, Target, connect, find_address, find_api_key
from gateway.cli.data_dir import DataDir
from gateway.cli.errors import CliError, UsageError, read_refusal
from gateway.cli.limits import parse_budget, parse_duration, parse_limit
from gateway.cli.output import Column, OutputFormat, OutputOption, print_data, print_many, time_text, to_data
from gateway.cli.quota_denials import denials
from gateway.cli.quota_policies import get_policy, grant_lines, raised_text
from gateway.cli.references import quota_policy_name
from gateway.cli.security import CaCertOption, ClientCertOption, ClientKeyOption, Security
from gateway.cli.served_models import tell_of_unserved
from gateway.durations import duration_text
from gateway.words import short_name

app = typer.Typer(
    help="Limits raised for a while, what limits refused, what is left of one's own.", no_args_is_help=True
)
app.command("denials")(denials)

STATUS_COLUMNS: tuple[Column[quota_pb2.QuotaLimitStatus], ...] = (
    Column("NODE", lambda status: short_name(status.node)),
    Column("LIMIT", lambda status: _status_text(status)),
    Column("MODE", lambda status: status.mode),
    Column("LEFT", lambda status: str(status.remaining)),
    Column("FULL IN", lambda status: _wait_text(status)),
)


@app.command()
@admin_command
def grant(
    admin: Admin,
    node: Annotated[str, typer.Argument(metavar="NODE", help="acme, acme/search or acme/search/KEY.")],
    until: Annotated[str, typer.Option("--until", help="A time such as 2027-01-31T18:00Z, or a length such as 6h.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it goes into the audit log.")],
    limit: Annotated[str | None, typer.Option("--limit", help="total_tokens=200000, requests=600:burst=100, …")] = None,
    budget: Annotated[str | None, typer.Option("--budget", help="month=2000000, day=…, week=…")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Raise one limit or budget of NODE until a time, at which it is what it was again."""
    if (limit is None) == (budget is None):
        raise UsageError("say what is raised: one of --limit and --budget")
    request = pb.GrantTemporaryQuotaRequest(
        name=quota_policy_name(node),
        expire_time=parse_until(until),
        reason=reason,
        limit=None if limit is None else parse_limit(limit),
        budget=None if budget is None else parse_budget(budget),
    )
    policy = admin.call(admin.stub.GrantTemporaryQuota, request)
    print_many(policy.temporary_quotas, grant_columns(policy), output)
    tell_of_unserved(admin, [request.limit.model, request.budget.model])


@app.command()
@admin_command
def end(
    admin: Admin,
    node: Annotated[str, typer.Argument(metavar="NODE", help="acme, acme/search or acme/search/KEY.")],
    grant_id: Annotated[
        str, typer.Argument(metavar="GRANT", help="Its id, as `quota grant` and `quota-policies show` print it.")
    ],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """End a grant of NODE before its time: the limit or budget is what it was again."""
    request = pb.EndTemporaryQuotaRequest(name=quota_policy_name(node), uid=grant_id)
    try:
        policy = admin.call(admin.stub.EndTemporaryQuota, request)
    except grpc.RpcError as error:
        if read_refusal(error).code not in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND):
            raise
        raise _no_grant(get_policy(admin, node), grant_id) from error
    print_many(policy.temporary_quotas, grant_columns(policy), output)


@app.command()
@command
def status(
    address: AddressOption = None,
    data_dir: DataDirOption = None,
    api_key_file: ApiKeyOption = None,
    ca_cert: CaCertOption = None,
    client_cert: ClientCertOption = None,
    client_key: ClientKeyOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the limits over an API key and what is left of them."""
    target = Target(address, DataDir.at(data_dir), api_key_file, Security(ca_cert, client_cert, client_key))
    with connect(find_address(target), find_api_key(target), target.security) as connection:
        found = QuotaServiceStub(connection.channel).GetQuotaStatus(
            quota_pb2.GetQuotaStatusRequest(), metadata=connection.metadata, timeout=CALL_TIMEOUT_S
        )
    if output is OutputFormat.TABLE:
        print_many(found.status.limits, STATUS_COLUMNS, output)
    else:
        print_data(to_data(found.status), output)


def grant_columns(policy: pb.QuotaPolicy) -> tuple[Column[pb.TemporaryQuota], ...]:
    """Of the grants of `policy`."""
    return (
        Column("RAISED", lambda grant: raised_text(policy, grant)),
        Column("UNTIL", lambda grant: time_text(grant, "expire_time")),
        Column("REASON", lambda grant: grant.reason),
        Column("BY", lambda grant: grant.creator),
        Column("ID", lambda grant: grant.uid),
    )


def parse_until(text: str) -> Timestamp:
    """`2027-01-31T18:00Z` (UTC where no zone is given), or a length of time from now. Raises UsageError."""
    stamp = Timestamp()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.now(UTC) + _length(text)
    try:
        stamp.FromDatetime(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is outside the years 1 to 9999") from None
    return stamp


def _length(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except UsageError:
        raise UsageError(f"{text!r} is neither a time nor a length of time: write 2027-01-31T18:00Z or 6h") from None


def _no_grant(policy: pb.QuotaPolicy, grant_id: str) -> CliError:
    """What there is instead."""
    node = short_name(policy.name.partition("/quotaPolicies/")[0])
    message = f"{node} has no grant {grant_id!r}" + ("; it has" if policy.temporary_quotas else ", nor any other")
    return CliError(message, hint="\n  ".join(grant_lines(policy)))


def _status_text(status: quota_pb2.QuotaLimitStatus) -> str:
    text = f"{status.window or status.dimension}={status.limit}"
    if status.HasField("period"):
        text += f"/{duration_text(status.period.ToTimedelta())}:burst={status.burst}"
    return text + (f":model={status.model}" if status.model else "")


def _wait_text(status: quota_pb2.QuotaLimitStatus) -> str:
    seconds = status.reset_delay.ToTimedelta() / timedelta(seconds=1)
    return "-" if not seconds else f"{seconds:.1f}s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
