"""grpc.health.v1 for the gateway's services.

Ours rather than the library's, whose `set` waits for every watcher to read: one client that watches and does not read
would keep the gateway from noticing an engine, and from draining. Here a watcher that is slow misses states in between.
"""

# ruff: noqa: N802 - the names are the protocol's

import asyncio
from collections import abc

import grpc
from grpc_health.v1 import health_pb2 as pb

from gateway.errors import NotFoundError

SERVICE = "grpc.health.v1.Health"

Status = pb.HealthCheckResponse
Context = grpc.aio.ServicerContext[object, object]


class HealthServicer:
    """The status of each service, which is NOT_SERVING until `set` says otherwise; "" is the gateway as a whole."""

    def __init__(self, services: abc.Iterable[str]) -> None:
        self._is_serving = dict.fromkeys(services, False)
        self._is_stopping = False
        self._changed = asyncio.Event()

    def set(self, service: str, *, is_serving: bool) -> None:
        """Whoever asks or watches learns it from now on."""
        self._is_serving[service] = is_serving
        # Each watcher waits on the event that was current when it last looked, so none can miss a change.
        self._changed.set()
        self._changed = asyncio.Event()

    def is_serving(self, service: str) -> bool:
        """Whether the service can be used now."""
        return self._is_serving[service] and not self._is_stopping

    def stop(self) -> None:
        """Every service is NOT_SERVING, for good."""
        self._is_stopping = True
        for service in self._is_serving:
            self.set(service, is_serving=False)

    async def Check(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        if request.service not in self._is_serving:
            raise NotFoundError("the service")
        return Status(status=self._status(request.service))

    async def List(self, request: pb.HealthListRequest, context: Context) -> pb.HealthListResponse:
        return pb.HealthListResponse(
            statuses={service: Status(status=self._status(service)) for service in self._is_serving}
        )

    async def Watch(
        self, request: pb.HealthCheckRequest, context: Context
    ) -> abc.AsyncIterator[pb.HealthCheckResponse]:
        last = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != last:
                yield Status(status=status)
                last = status
            await changed.wait()

    def _status(self, service: str) -> int:
        is_serving = self._is_serving.get(service)
        if is_serving is None:
            return int(Status.SERVICE_UNKNOWN)
        return int(Status.SERVING if is_serving and not self._is_stopping else Status.NOT_SERVING)
