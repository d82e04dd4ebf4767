"""TLS of the HTTP port, by the same files as gRPC's and as freshly read."""

import ssl

from gateway.errors import SettingsError
from gateway.settings import TlsFiles
from gateway.tls import FollowedFiles


def following_context(files: TlsFiles) -> ssl.SSLContext:
    """A context whose new connections get the files as they are then. Raises SettingsError."""
    followed = FollowedFiles(files, _context)

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        followed.newer()
        connection.context = followed.current

    first = _context(files)
    # Called at every handshake, whether or not the client names a server.
    first.sni_callback = choose
    return first


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key)
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:  # they have changed since they were looked at
        raise SettingsError(f"tls: {files.certificate} and {files.key} cannot be used: {error}") from error
    return context
