"""The life of the embedded server: one owner, and data that survives whatever ends it."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from unittest import mock

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import psutil
import pytest

from gateway.embedded import (
    DirectoryInUseError,
    EmbeddedOptions,
    EmbeddedPostgres,
    ServerStartError,
    directory,
    launcher,
)
from gateway.embedded import server as server_module
from gateway.embedded.account import server_account
from gateway.embedded.orphan import is_running
from gateway.embedded.server import find_binaries
from tests.store.server_directories import copy_tree, execute, mode_of, read_answer

DEADLINE_S = 60
OWNER = """
import asyncio, sys
from pathlib import Path
from gateway.embedded import EmbeddedPostgres

async def main():
    server = EmbeddedPostgres(Path(sys.argv[1]))
    print(await server.start(), server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def start_owner(data_dir: Path) -> tuple[asyncio.subprocess.Process, psutil.Process]:
    """Another process that runs the server, and the server."""
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, str(data_dir), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    _, _, pid = (await owner.stdout.readline()).decode().rpartition(" ")
    return owner, psutil.Process(int(pid))


async def wait_for_end(process: psutil.Process) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while is_running(process):  # noqa: ASYNC110 - somebody else's child
            await asyncio.sleep(0.01)


async def test_data_survives_a_restart_under_the_same_url(server: EmbeddedPostgres) -> None:
    url = await server.start()
    await execute(url, "UPDATE memory SET answer = 43")
    await server.stop()

    assert await server.start() == url
    assert await read_answer(url) == 43


async def test_another_instance_finds_the_data_too(server: EmbeddedPostgres, data_dir: Path) -> None:
    await server.start()
    await server.stop()
    successor = EmbeddedPostgres(data_dir)

    assert await read_answer(await successor.start()) == 42

    await successor.stop()


async def test_the_server_is_reached_by_its_socket_and_its_owner_only(server: EmbeddedPostgres, data_dir: Path) -> None:
    url = await server.start()

    connection = await asyncpg.connect(url)
    assert await connection.fetchval("SHOW listen_addresses") == ""
    assert await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
    assert await connection.fetchval("SHOW fsync") == "on"
    await connection.close()
    assert mode_of(data_dir / "postgres" / "run") == mode_of(data_dir / "postgres" / "data") == 0o700


async def test_the_server_ignores_the_terminals_ctrl_c(server: EmbeddedPostgres) -> None:
    await server.start()

    assert server.pid is not None
    assert os.getpgid(server.pid) != os.getpgid(0)
    assert os.getsid(server.pid) != os.getsid(0)


async def test_stopping_ends_the_server_and_can_be_repeated(server: EmbeddedPostgres, data_dir: Path) -> None:
    await server.start()
    assert server.pid is not None
    process = psutil.Process(server.pid)

    await server.stop()
    await server.stop()

    assert not process.is_running()
    assert server.pid is None
    assert not (data_dir / "postgres" / "data" / "postmaster.pid").exists()


async def test_a_second_owner_in_this_process_is_refused(server: EmbeddedPostgres, data_dir: Path) -> None:
    url = await server.start()

    with pytest.raises(DirectoryInUseError) as refusal:
        await EmbeddedPostgres(data_dir).start()

    assert str(data_dir / "postgres") in str(refusal.value)
    assert refusal.value.pid == os.getpid()
    assert await read_answer(url) == 42  # the first one did not notice


async def test_a_second_owner_is_told_which_process_is_the_first(server: EmbeddedPostgres, data_dir: Path) -> None:
    owner, _ = await start_owner(data_dir)

    with pytest.raises(DirectoryInUseError, match=f"in use by process {owner.pid}"):
        await server.start()

    owner.kill()
    await owner.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not end children with their parent")
async def test_the_server_ends_when_its_owner_is_killed(data_dir: Path) -> None:
    owner, postgres = await start_owner(data_dir)

    owner.kill()

    await wait_for_end(postgres)
    await owner.wait()


async def test_a_killed_owners_directory_is_taken_over_with_its_data(server: EmbeddedPostgres, data_dir: Path) -> None:
    owner, postgres = await start_owner(data_dir)
    owner.kill()
    await owner.wait()

    assert await read_answer(await server.start()) == 42
    assert not is_running(postgres)


async def test_an_owner_and_a_server_killed_together_leave_a_directory_that_starts(
    server: EmbeddedPostgres, data_dir: Path
) -> None:
    owner, postgres = await start_owner(data_dir)
    postgres.kill()
    owner.kill()
    await owner.wait()
    assert (data_dir / "postgres" / "data" / "postmaster.pid").exists()

    assert await read_answer(await server.start()) == 42


async def test_a_server_that_nobody_owns_is_stopped_first(server: EmbeddedPostgres, data_dir: Path) -> None:
    root = data_dir / "postgres"
    url = await server.start()
    await server.stop()
    account = server_account([find_binaries(), root / "data"])
    user = (str(account.uid), str(account.gid)) if account.changes_user else ("-", "-")
    orphan = await asyncio.create_subprocess_exec(
        *(sys.executable, launcher.__file__, str(os.getpid()), "SIGKILL", *user, str(account.capability or "-")),
        *(str(find_binaries() / "postgres"), "-D", str(root / "data"), "-c", "listen_addresses="),
        *("-c", f"unix_socket_directories={root / 'run'}", "-c", f"hba_file={root / 'pg_hba.conf'}"),
        *("-c", f"ident_file={root / 'pg_ident.conf'}"),
        cwd=root,
        stderr=asyncio.subprocess.DEVNULL,
    )
    await execute(await until_answers(url), "UPDATE memory SET answer = 43")

    assert await server.start() == url

    assert await orphan.wait() == 0  # a shutdown, not a crash
    assert server.pid != orphan.pid
    assert await read_answer(url) == 43


async def until_answers(url: str) -> str:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await execute(url, "SELECT 1")
            except (OSError, asyncpg.CannotConnectNowError):
                await asyncio.sleep(0.01)
            else:
                return url


async def test_a_pid_file_whose_number_is_another_process_by_now_is_no_server(
    server: EmbeddedPostgres, data_dir: Path
) -> None:
    bystander = await asyncio.create_subprocess_exec("sleep", "600")
    lines = [str(bystander.pid), str(data_dir / "postgres/data"), "1700000000", "5432", "/tmp", "", "1 1", "ready"]
    for name in ("data/postmaster.pid", "run/.s.PGSQL.5432.lock"):
        (data_dir / "postgres" / name).write_text("\n".join(lines) + "\n")

    assert await read_answer(await server.start()) == 42
    assert bystander.returncode is None

    bystander.kill()
    await bystander.wait()


async def test_a_crashed_server_is_noticed_and_starts_again(server: EmbeddedPostgres) -> None:
    url = await server.start()
    assert server.pid is not None
    await execute(url, "UPDATE memory SET answer = 43")

    os.kill(server.pid, signal.SIGKILL)

    assert await server.wait() == -signal.SIGKILL
    assert await server.start() == url
    assert await read_answer(url) == 43


async def test_a_server_that_cannot_start_says_why_and_frees_the_directory(
    server: EmbeddedPostgres, data_dir: Path
) -> None:
    refused = EmbeddedPostgres(data_dir, EmbeddedOptions(settings={"no_such_setting": "1"}))

    with pytest.raises(ServerStartError, match="unrecognized configuration parameter") as refusal:
        await refused.start()

    assert str(data_dir / "postgres") in str(refusal.value)
    assert await read_answer(await server.start()) == 42


async def test_a_start_that_takes_too_long_is_given_up(server: EmbeddedPostgres, data_dir: Path) -> None:
    hasty = EmbeddedPostgres(data_dir, EmbeddedOptions(start_timeout_s=0.0))

    with pytest.raises(ServerStartError, match="not ready after 0 s"):
        await hasty.start()

    assert hasty.pid is None
    assert await read_answer(await server.start()) == 42


async def test_a_first_start_that_takes_too_long_says_at_which_step(tmp_path: Path) -> None:
    hasty = EmbeddedPostgres(tmp_path, EmbeddedOptions(start_timeout_s=0.0))

    with pytest.raises(ServerStartError, match="initdb not done after 0 s") as refusal:
        await hasty.start()

    assert refusal.value.directory == tmp_path / "postgres"


async def test_a_directory_that_cannot_be_read_in_time_is_named(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_CONTROL_TIMEOUT_S", 0.0)

    with pytest.raises(ServerStartError, match="pg_control could not be read within 0 s") as refusal:
        await EmbeddedPostgres(data_dir).start()

    assert refusal.value.directory == data_dir / "postgres"


@pytest.mark.parametrize(
    "failure",
    [
        asyncpg.InsufficientPrivilegeError("permission denied"),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InternalClientError("out of step"),
        TimeoutError(),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_a_database_that_cannot_be_prepared_is_a_failed_start(
    server: EmbeddedPostgres, data_dir: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(asyncpg.Connection, "fetchval", mock.AsyncMock(side_effect=failure))
        with pytest.raises(ServerStartError) as refusal:
            await server.start()

    reason = str(failure) or "TimeoutError"
    assert str(refusal.value) == (
        f"{data_dir / 'postgres'}: the server runs, but its database cannot be prepared: {reason}"
    )
    assert server.pid is None
    assert await read_answer(await server.start()) == 42


async def test_an_earlier_server_that_may_not_be_stopped_is_a_failed_start(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(server_module, "stop_orphans", mock.Mock(side_effect=psutil.AccessDenied(4711)))
        with pytest.raises(ServerStartError, match=r"an earlier server cannot be stopped: .*4711"):
            await server.start()

    assert await read_answer(await server.start()) == 42


async def test_a_cancelled_start_leaves_no_server(server: EmbeddedPostgres, data_dir: Path) -> None:
    start = asyncio.create_task(server.start())
    async with asyncio.timeout(DEADLINE_S):
        while not (pid := server.pid):  # noqa: ASYNC110 - seen from outside, between two of its steps
            await asyncio.sleep(0.001)

    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start

    assert not psutil.pid_exists(pid)
    assert await read_answer(await server.start()) == 42


async def test_a_path_too_long_for_a_socket_gets_a_short_one_that_stays(pristine: Path, tmp_path: Path) -> None:
    data_dir = copy_tree(pristine, tmp_path / "/".join(["a" * 40] * 3) / "data")
    server = EmbeddedPostgres(data_dir)

    url = await server.start()
    assert await read_answer(url) == 42
    socket_directory = Path((data_dir / "postgres" / "socket-directory").read_text())
    assert mode_of(socket_directory) == 0o700
    await server.stop()
    assert socket_directory.name not in os.listdir(socket_directory.parent)
    assert await server.start() == url

    await server.stop()


async def test_a_short_path_that_somebody_else_took_is_not_used(pristine: Path, tmp_path: Path) -> None:
    data_dir = copy_tree(pristine, tmp_path / "/".join(["a" * 40] * 3) / "data")
    taken = tmp_path / "taken"
    taken.symlink_to(tmp_path)
    (data_dir / "postgres" / "socket-directory").write_text(str(taken))
    server = EmbeddedPostgres(data_dir)

    url = await server.start()

    assert await read_answer(url) == 42
    assert str(taken.name) not in url
    assert taken.is_symlink()
    await server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
async def test_for_root_the_server_is_nobody_and_no_directory_is_opened_up(
    server: EmbeddedPostgres, data_dir: Path
) -> None:
    os.chmod(data_dir, 0o700)
    modes = {path: mode_of(path) for path in [data_dir, *data_dir.parents, *find_binaries().parents]}

    await server.start()

    assert psutil.Process(server.pid).username() == "nobody"
    assert {path: mode_of(path) for path in modes} == modes
