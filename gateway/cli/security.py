"""How a client command reaches a gateway that has TLS: whom it trusts, and what it shows.

authority           --ca-cert      EVENFLOW_CA_CERT      a PEM file, or `system` for the authorities of this machine
own certificate     --client-cert  EVENFLOW_CLIENT_CERT  a PEM file, for gateways that ask for one
its key             --client-key   EVENFLOW_CLIENT_KEY
Without any of them the connection is not encrypted.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import grpc
import typer

from gateway.cli.errors import UsageError

SYSTEM = "system"
CaCertOption = Annotated[
    str | None,
    typer.Option(
        "--ca-cert", envvar="EVENFLOW_CA_CERT", help="Use TLS and trust this PEM file; `system`: this machine's."
    ),
]
ClientCertOption = Annotated[
    Path | None, typer.Option("--client-cert", envvar="EVENFLOW_CLIENT_CERT", help="PEM file shown to the gateway.")
]
ClientKeyOption = Annotated[
    Path | None, typer.Option("--client-key", envvar="EVENFLOW_CLIENT_KEY", help="PEM file: the key of --client-cert.")
]


@dataclass(frozen=True, slots=True)
class Security:
    """Nothing set: no TLS."""

    ca_cert: str | None = None
    client_cert: Path | None = None
    client_key: Path | None = None

    @classmethod
    def from_environment(cls) -> "Security":
        """For commands that have no options for it."""
        certificate, key = os.environ.get("EVENFLOW_CLIENT_CERT"), os.environ.get("EVENFLOW_CLIENT_KEY")
        return cls(
            os.environ.get("EVENFLOW_CA_CERT") or None,
            Path(certificate) if certificate else None,
            Path(key) if key else None,
        )

    def credentials(self) -> grpc.ChannelCredentials | None:
        """None: no TLS. Raises UsageError for a file that cannot be read and for one half of a pair."""
        if (self.client_cert is None) != (self.client_key is None):
            raise UsageError("--client-cert and --client-key go together")
        if self.ca_cert is None and self.client_cert is None:
            return None
        roots = None if self.ca_cert in (None, SYSTEM) else _read(Path(str(self.ca_cert)))
        if self.client_cert is None or self.client_key is None:
            return grpc.ssl_channel_credentials(roots)
        return grpc.ssl_channel_credentials(roots, _read(self.client_key), _read(self.client_cert))


PLAIN = Security()
"""No TLS."""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
