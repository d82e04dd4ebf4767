"""TLS of the public port: who is let in, and certificates that are replaced under a running gateway."""

from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.cli.health import is_serving
from gateway.errors import SettingsError
from gateway.server import ADMIN_SERVICE
from gateway.settings import TlsFiles, load_settings
from gateway.tls import ServerTls
from tests.auth.certificates import Authority, write
from tests.cli.command_line import CommandLine
from tests.gateway.world import World


class Files:
    """The files of one gateway, as an administrator keeps them."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority()
        self.certificate, self.key = directory / "tls.pem", directory / "tls.key"
        self.client_ca = directory / "client-ca.pem"
        self.replace(self.authority)

    def replace(self, authority: Authority) -> None:
        certificate, key = authority.issue("gateway")
        write(self.certificate, certificate)
        write(self.key, key)

    @property
    def options(self) -> dict[str, str]:
        return {"tls_cert": str(self.certificate), "tls_key": str(self.key)}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest_asyncio.fixture
async def tls_world(closed_world: World, files: Files) -> World:
    closed_world.options |= files.options
    await closed_world.open()
    await closed_world.serving()
    return closed_world


def secure(world: World, authority: Authority, client: tuple[bytes, bytes] | None = None) -> grpc.aio.Channel:
    certificate, key = client or (None, None)
    credentials = grpc.ssl_channel_credentials(authority.certificate, key, certificate)
    # Its own connection, so that each is a handshake.
    return grpc.aio.secure_channel(world.live.address, credentials, options=(("grpc.use_local_subchannel_pool", 1),))


async def reaches(world: World, authority: Authority, client: tuple[bytes, bytes] | None = None) -> bool:
    async with secure(world, authority, client) as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True


async def test_clients_that_trust_the_authority_get_in_and_plain_ones_do_not(tls_world: World, files: Files) -> None:
    assert await reaches(tls_world, files.authority)
    assert not await reaches(tls_world, Authority("another"))
    assert not await is_serving(tls_world.live.address)


async def test_a_certificate_is_replaced_while_a_stream_goes_on(tls_world: World, files: Files) -> None:
    async with secure(tls_world, files.authority) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        other = Authority("another")
        files.replace(other)

        assert await reaches(tls_world, other)
        assert not await reaches(tls_world, files.authority)
        await tls_world.engine.stop()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()


@pytest.mark.parametrize("damage", ["certificate only", "no certificate", "gone"])
async def test_files_that_do_not_fit_leave_the_last_good_ones_in_place(
    tls_world: World, files: Files, damage: str
) -> None:
    other = Authority("another")
    certificate, key = other.issue("gateway")
    if damage == "certificate only":
        write(files.certificate, certificate)
    elif damage == "no certificate":
        write(files.certificate, b"nothing")
    else:
        files.certificate.unlink()

    assert await reaches(tls_world, files.authority)

    write(files.certificate, certificate)
    write(files.key, key)
    assert await reaches(tls_world, other)


async def test_clients_need_a_certificate_of_the_authority_and_another_one_can_take_its_place(
    closed_world: World, files: Files
) -> None:
    clients, strangers = Authority("clients"), Authority("strangers")
    write(files.client_ca, clients.certificate)
    closed_world.options |= files.options | {"client_ca": str(files.client_ca)}
    await closed_world.open()
    known, stranger = clients.issue("app"), strangers.issue("app")

    assert await reaches(closed_world, files.authority, known)
    assert not await reaches(closed_world, files.authority, stranger)
    assert not await reaches(closed_world, files.authority)

    write(files.client_ca, strangers.certificate)
    assert await reaches(closed_world, files.authority, stranger)
    assert not await reaches(closed_world, files.authority, known)


async def test_the_command_line_comes_in_with_both_certificates(
    closed_world: World, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = Authority("clients")
    write(files.client_ca, clients.certificate)
    closed_world.options |= files.options | {"client_ca": str(files.client_ca)}
    await closed_world.open()
    admin = await closed_world.administrator()
    certificate, key = clients.issue("administrator")
    ca = write(tmp_path / "ca.pem", files.authority.certificate)
    own, own_key = write(tmp_path / "own.pem", certificate), write(tmp_path / "own.key", key)
    monkeypatch.setenv("EVENFLOW_ADMIN_KEY", admin.key)
    monkeypatch.setenv("EVENFLOW_ADDRESS", closed_world.live.address)
    for name in ("CA_CERT", "CLIENT_CERT", "CLIENT_KEY"):
        monkeypatch.delenv(f"EVENFLOW_{name}", raising=False)
    run = CommandLine()

    by_flags = await run("orgs", "list", "--ca-cert", str(ca), "--client-cert", str(own), "--client-key", str(own_key))
    plain = await run("orgs", "list")
    half = await run("orgs", "list", "--ca-cert", str(ca), "--client-cert", str(own))
    missing = await run("orgs", "list", "--ca-cert", str(tmp_path / "none.pem"))
    monkeypatch.setenv("EVENFLOW_CA_CERT", str(ca))
    monkeypatch.setenv("EVENFLOW_CLIENT_CERT", str(own))
    monkeypatch.setenv("EVENFLOW_CLIENT_KEY", str(own_key))
    by_environment = await run("orgs", "list")
    is_seen_serving = await is_serving(closed_world.live.address, ADMIN_SERVICE)

    assert (by_flags.exit_code, by_environment.exit_code) == (0, 0)
    assert (plain.exit_code, half.exit_code, missing.exit_code) == (3, 2, 2)
    assert "none.pem" in missing.stderr
    assert is_seen_serving


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"tls_cert"}, "tls_cert"),
        ({"tls_key"}, "tls_key"),
        ({"client_ca"}, "client_ca"),
        ({"tls_cert", "client_ca"}, "tls_cert"),
    ],
)
def test_one_file_without_the_others_stops_the_start(tmp_path: Path, given: set[str], named: str) -> None:
    settings = load_settings(
        engine="unix:/e.sock", database_url="postgresql://x/y", **{name: str(tmp_path / name) for name in given}
    )

    with pytest.raises(SettingsError, match=named):
        settings.tls_files  # noqa: B018 - raises


def test_files_that_cannot_be_used_stop_the_start_and_are_named(files: Files, tmp_path: Path) -> None:
    other_key = write(tmp_path / "other.key", files.authority.issue("x")[1])
    empty = write(tmp_path / "empty.pem", b"")
    for tls, named in (
        (TlsFiles(tmp_path / "none.pem", files.key), "none.pem"),
        (TlsFiles(files.certificate, other_key), "other.key"),
        (TlsFiles(empty, files.key), "empty.pem"),
        (TlsFiles(files.certificate, empty), "empty.pem"),
        (TlsFiles(files.certificate, files.key, empty), "empty.pem"),
    ):
        with pytest.raises(SettingsError, match=named):
            ServerTls(tls)
