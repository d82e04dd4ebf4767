"""A scheduling policy that remembers what it was charged for, so that the simulator can tell who was served."""

from collections import abc

from engine.core.leap import LeapingPolicy
from engine.core.policy import SchedulingPolicy, Service
from engine.core.types import Nanos


class ServiceMeter:
    """Does what `policy` does. Its other methods are the policy's own, so that nothing is paid for passing them on."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.on_arrive = policy.on_arrive
        self.on_leave = policy.on_leave
        self.begin = policy.begin
        self.select = policy.select
        self.key = policy.key
        self.concede = policy.concede
        self.standing = policy.standing
        self.snapshot = policy.snapshot
        self.restore = policy.restore
        self.policy = policy
        self._charge = policy.charge
        self._services: list[Service] = []

    def charge(self, service: Service) -> None:
        self._services.append(service)
        self._charge(service)

    def take(self) -> list[Service]:
        """The services since the last call."""
        services, self._services = self._services, []
        return services


class LeapingMeter(ServiceMeter):
    """The same for a policy that leaps."""

    def __init__(self, policy: SchedulingPolicy, leaping: LeapingPolicy) -> None:
        super().__init__(policy)
        self._leap = leaping.leap

    def leap(self, services: abc.Sequence[Service], times: abc.Sequence[Nanos]) -> int:
        num_taken = self._leap(services, times)
        for service in services:
            self._services.append(_times(service, num_taken))
        return num_taken


def meter(policy: SchedulingPolicy) -> ServiceMeter:
    """`policy`, metered; it leaps if it did."""
    return LeapingMeter(policy, policy) if isinstance(policy, LeapingPolicy) else ServiceMeter(policy)


def _times(service: Service, num_steps: int) -> Service:
    return Service(service.flow, 0, service.num_output_tokens * num_steps, 0, service.is_borrowed)
