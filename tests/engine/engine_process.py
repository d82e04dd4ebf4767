"""Engines as processes of their own: started, waited for, and ended however the test goes."""

import contextlib
import os
import subprocess
import sys
import time
from collections import abc
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine.settings import ENV_PREFIX

ROOT = Path(__file__).parents[2]
START_S = 90.0  # importing torch and loading the model on a busy machine
END_S = 30.0
WATCH_S = 2.0
RECONNECT_QUICKLY = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]


@dataclass(frozen=True)
class EngineProcess:
    """A process that listens, or soon will, on `socket`; its stderr is in `log_path`."""

    process: subprocess.Popen[bytes]
    socket: Path
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def target(self) -> str:
        return f"unix:{self.socket}"

    def wait_until_serving(self) -> None:
        """Returns once health says SERVING. AssertionError, with the log, if the process ends first."""
        with grpc.insecure_channel(self.target, RECONNECT_QUICKLY) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            give_up_at = time.monotonic() + START_S
            while self.process.poll() is None and time.monotonic() < give_up_at:
                if is_serving(stub):
                    return
        raise AssertionError(f"the engine does not serve\n{self.log}")

    def exit_code(self) -> int:
        return self.process.wait(END_S)


def is_serving(stub: health_pb2_grpc.HealthStub) -> bool:
    """Watches for a while."""
    with contextlib.suppress(grpc.RpcError):
        for response in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=WATCH_S):
            if response.status == health_pb2.HealthCheckResponse.SERVING:
                return True
    return False


def clean_environ(**variables: str) -> dict[str, str]:
    """This process's environment without what would change an engine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith((ENV_PREFIX, "OTEL_"))}
    return kept | variables


@contextlib.contextmanager
def engine_process(module: str, folder: Path, *arguments: str) -> abc.Iterator[EngineProcess]:
    """`python -m module arguments --listen …`, killed at the end if it still runs."""
    socket, log_path = folder / "e.sock", folder / "engine.log"
    command = [sys.executable, "-m", *module.split(), "--listen", f"unix:{socket}", *arguments]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=clean_environ(), stderr=log, stdout=log)
    try:
        yield EngineProcess(process, socket, log_path)
    finally:
        process.kill()
        process.wait()
