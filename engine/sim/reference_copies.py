"""The copies of a runner without tensors: which blocks they fence, when they end, and what the host's blocks hold."""

import random
from dataclasses import dataclass, field

from engine.core.plan import BlockCopy, CopyDirection
from engine.core.types import BlockId, CopyId, HostBlockId


class RunnerFaultError(AssertionError):
    """A plan asked for something that would have corrupted a real runner's state."""


@dataclass(slots=True)
class Copies:
    """Copies under way, and the contents of the host's blocks. `max_delay` is in steps, beyond that of the plan."""

    cache: dict[BlockId, list[bytes]]
    max_delay: int
    random: random.Random
    host: dict[HostBlockId, list[bytes]] = field(default_factory=dict)
    under_way: dict[CopyId, tuple[int, BlockCopy]] = field(default_factory=dict)  # with the step in which it ends
    fenced: dict[BlockId, CopyId] = field(default_factory=dict)
    fenced_host: dict[HostBlockId, CopyId] = field(default_factory=dict)

    def start(self, copy: BlockCopy, step: int) -> None:
        """Both sides are fenced. Raises RunnerFaultError where one of them is already, or the host holds nothing."""
        if copy.copy_id in self.under_way:
            raise RunnerFaultError(f"copy {copy.copy_id} is under way twice")
        if not copy.device_block_ids or len(copy.device_block_ids) != len(copy.host_block_ids):
            raise RunnerFaultError(f"copy {copy.copy_id} pairs {copy.device_block_ids} and {copy.host_block_ids}")
        for device_id, host_id in zip(copy.device_block_ids, copy.host_block_ids, strict=True):
            self.check(device_id)
            if host_id in self.fenced_host:
                raise RunnerFaultError(f"host block {host_id} belongs to copy {self.fenced_host[host_id]}")
            self.fenced[device_id] = self.fenced_host[host_id] = copy.copy_id
            if copy.direction is CopyDirection.IN:
                if host_id not in self.host:
                    raise RunnerFaultError(f"copy {copy.copy_id} reads host block {host_id}, which holds nothing")
                self.cache.pop(device_id, None)
        self.under_way[copy.copy_id] = (step + self.random.randint(0, self.max_delay), copy)

    def end(self, step: int) -> tuple[CopyId, ...]:
        """The copies that end in `step`, in an order of their own; their blocks are fenced no more."""
        ended = [copy_id for copy_id, (ends_in, _) in self.under_way.items() if ends_in <= step]
        self.random.shuffle(ended)
        for copy_id in ended:
            _, copy = self.under_way.pop(copy_id)
            for device_id, host_id in zip(copy.device_block_ids, copy.host_block_ids, strict=True):
                del self.fenced[device_id], self.fenced_host[host_id]
                if copy.direction is CopyDirection.OUT:
                    self.host[host_id] = list(self.cache.get(device_id, ()))  # none where nothing was written yet
                else:
                    self._bring(device_id, host_id)
        return tuple(ended)

    def _bring(self, device_id: BlockId, host_id: HostBlockId) -> None:
        slots = self.host[host_id]
        if slots:
            self.cache[device_id] = list(slots)

    def check(self, block_id: BlockId) -> None:
        """Raises RunnerFaultError if the device block is fenced."""
        if block_id in self.fenced:
            raise RunnerFaultError(f"block {block_id} belongs to copy {self.fenced[block_id]}")

    def on_device(self, source: BlockId, target: BlockId) -> None:
        """`target` holds what `source` does. Raises RunnerFaultError where that is nothing, or one of them fenced."""
        self.check(source)
        self.check(target)
        if source not in self.cache:
            raise RunnerFaultError(f"block {source}, which holds nothing for block {target}, is copied")
        self.cache[target] = list(self.cache[source])
