"""What the store refuses, free of any protocol; the admin servicer and the interceptors give these their status.

StoreError
├── NotFoundError              the named resource does not exist
├── AlreadyExistsError         the name or the scope is taken
├── StoreConflictError         the etag is not the resource's current one
├── RequestIdReusedError       the request id was used for another request
├── LastPlatformKeyError       without the key nobody could administrate
├── InvalidValueError          a value that a constraint of the schema refuses
├── DatabaseUnavailableError   no answer in time; the same call may succeed later
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
    """`resource` is the name that is taken."""

    def __init__(self, resource: str) -> None:
        super().__init__(f"{resource} exists already")
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


class LastPlatformKeyError(StoreError):
    """The key is the only platform key that can still be used."""

    def __init__(self, public_id: str) -> None:
        super().__init__(f"apiKeys/{public_id} is the last platform key that can be used: make another one first")
        self.public_id = public_id


class InvalidValueError(StoreError):
    """`field` is the field, or the constraint, that refused the value."""

    def __init__(self, field: str, description: str) -> None:
        super().__init__(f"{field}: {description}")
        self.field = field
        self.description = description


class DatabaseUnavailableError(StoreError):
    """Postgres did not answer, or not in time."""


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
