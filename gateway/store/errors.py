"""What the store refuses, free of any protocol; the admin servicer and the interceptors give these their status.

StoreError
├── NotFoundError              the named resource does not exist
├── AlreadyExistsError         the name or the scope is taken, or what should come back was never gone
├── StoreConflictError         the etag is not the resource's current one
├── RequestIdReusedError       the request id was used for another request
├── PreconditionFailedError    the state of something else is in the way
├── LastPlatformKeyError       without the key nobody could administrate
├── InvalidValueError          a value that a constraint of the schema refuses
├── DatabaseUnavailableError   no answer in time; the same call may succeed later
│   └── StatementTimeoutError  the database is there, and ended a statement that took too long
├── DatabaseUrlError           the URL cannot be used
├── UnsupportedServerError     the server is older than the oldest supported one
└── SchemaVersionError         the schema is not the one this release works with
"""


class StoreError(Exception):
    """Base of every error that the store raises."""


class NotFoundError(StoreError):
    """`resource` is a resource name such as `organizations/acme`."""

    def __init__(self, resource: str) -> None:
        super().__init__(f"{resource} does not exist")
        self.resource = resource


class AlreadyExistsError(StoreError):
    """`resource` is the name that is taken, or of what was to come back and is not gone."""

    def __init__(self, resource: str, description: str = "exists already") -> None:
        super().__init__(f"{resource} {description}")
        self.resource = resource


class StoreConflictError(StoreError):
    """Somebody changed the resource since the caller read it."""

    def __init__(self, resource: str, current_etag: str) -> None:
        super().__init__(f"{resource} was changed meanwhile: read it again and repeat the change")
        self.resource = resource
        self.current_etag = current_etag


class RequestIdReusedError(StoreError):
    """A request id names one request for ever; a second, different one needs its own."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request id {request_id} was already used for a different request")
        self.request_id = request_id


class PreconditionFailedError(StoreError):
    """`subject` is what is in the way, `description` says why."""

    def __init__(self, subject: str, description: str) -> None:
        super().__init__(f"{subject} {description}")
        self.subject = subject


class LastPlatformKeyError(StoreError):
    """The key is the only platform key that can still be used."""

    def __init__(self, public_id: str) -> None:
        super().__init__(
            f"apiKeys/{public_id} is the last key of an administrator that can be used:"
            " make another one first (evenflow keys create --platform)"
        )
        self.public_id = public_id


class InvalidValueError(StoreError):
    """`field` is the field, or the constraint, that refused the value; empty where that is not known."""

    def __init__(self, field: str, description: str) -> None:
        super().__init__(f"{field}: {description}" if field else description)
        self.field = field
        self.description = description


class DatabaseUnavailableError(StoreError):
    """Postgres did not answer, or not in time."""


class StatementTimeoutError(DatabaseUnavailableError):
    """Postgres answers: it gave a statement up that ran, or waited for a lock, longer than it may."""


class DatabaseUrlError(StoreError):
    """The database URL is malformed or names something other than Postgres."""


class UnsupportedServerError(StoreError):
    """The server's version, and the oldest one that works."""

    def __init__(self, version: int, minimum: int) -> None:
        super().__init__(f"the database server is PostgreSQL {version}; {minimum} or newer is needed")
        self.version = version
        self.minimum = minimum


class SchemaVersionError(StoreError):
    """The schema in the database and the one that this release knows differ."""
