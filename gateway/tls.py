"""TLS of the public ports: a certificate, its key, and the authority whose clients are let in, read again when the
files change.

New connections get the files as they are now; those that exist keep what they began with. Files that are replaced one
after the other do not fit for a moment: until certificate and key do, and everything can be read, the last good ones
serve.
"""

import threading
from collections import abc
from pathlib import Path
from typing import Generic, TypeVar

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from gateway.errors import SettingsError
from gateway.settings import TlsFiles

log = structlog.get_logger(__name__)

Version = tuple[tuple[int, int, int], ...]
Made = TypeVar("Made")


class FollowedFiles(Generic[Made]):
    """What a transport makes of the files, made again when they have changed."""

    def __init__(self, files: TlsFiles, make: abc.Callable[[TlsFiles], Made]) -> None:
        """Raises SettingsError, naming the file, if the files cannot be used now."""
        self._files = files
        self._make = make
        self._lock = threading.Lock()  # handshakes come on threads of the transport
        self._seen = self._version()
        self._refused: Version | None = None
        self.current = self._read()

    def newer(self) -> Made | None:
        """Asked at each handshake: what is made of the files if they are others than at the last one."""
        with self._lock:
            try:
                version = self._version()
            except SettingsError as error:
                log.warning("the certificate cannot be read; the last one stays", error=str(error))
                return None
            if version in (self._seen, self._refused):
                return None
            try:
                self.current = self._read()
            except SettingsError as error:
                self._refused = version
                log.warning("the new certificate cannot be used; the last one stays", error=str(error))
                return None
            self._seen = version
            log.info("certificate replaced", file=str(self._files.certificate))
            return self.current

    def _version(self) -> Version:
        try:
            statuses = [path.stat() for path in self._files.paths]
        except OSError as error:
            raise SettingsError(f"tls: cannot read {error.filename}: {error.strerror}") from error
        return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in statuses)

    def _read(self) -> Made:
        require_usable(self._files)
        return self._make(self._files)


class ServerTls:
    """The credentials of one gRPC server, which follow the files."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises SettingsError, naming the file, if the files cannot be used now."""
        self._followed = FollowedFiles(files, _configuration)
        self._asks_for_certificate = files.client_ca is not None

    def credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`."""
        return grpc.dynamic_ssl_server_credentials(
            self._followed.current,
            self._followed.newer,  # type: ignore[arg-type] # None says "as before", which the stubs do not know
            require_client_authentication=self._asks_for_certificate,
        )


def require_usable(files: TlsFiles) -> None:
    """Raises SettingsError, naming the file, unless certificate and key fit and all can be read."""
    _require_pair(_read_file(files.certificate), _read_file(files.key), files)
    if files.client_ca is not None:
        _read_authority(files.client_ca)


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    certificate, key = _read_file(files.certificate), _read_file(files.key)
    authority = None if files.client_ca is None else _read_authority(files.client_ca)
    return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"tls: cannot read {path}: {error.strerror}") from error


def _read_authority(path: Path) -> bytes:
    content = _read_file(path)
    try:
        x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise SettingsError(f"client_ca: {path} holds no certificate") from error
    return content


def _require_pair(certificate: bytes, key: bytes, files: TlsFiles) -> None:
    try:
        leaf = x509.load_pem_x509_certificates(certificate)[0]
    except ValueError as error:
        raise SettingsError(f"tls_cert: {files.certificate} holds no certificate") from error
    try:
        private_key = load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"tls_key: {files.key} holds no private key, or one with a password") from error
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if leaf.public_key().public_bytes(*form) != private_key.public_key().public_bytes(*form):
        raise SettingsError(f"tls_key: {files.key} is not the key of {files.certificate}")
