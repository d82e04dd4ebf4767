"""From rows of traffic to requests, with what the tenants' records say. Knows no engine."""

from collections import abc
from dataclasses import dataclass, field
from typing import cast

from engine.core.types import Nanos, PathNode, PriorityClass, Request
from engine.sim.traffic.row import Arrival

TOKEN_ID_BITS = 32  # of a request's own token ids, so that no two prompts begin alike
PREFIX_IDS = 1 << 30  # pieces that prompts share have ids below 0, which nobody's own tokens have


@dataclass(frozen=True, slots=True)
class Tenancy:
    """What tenants' records would say.

    weights  node path ("organization" or "organization/team") to weight; 1 where absent
    classes  by name; one that is not here has the defaults of PriorityClass
    """

    weights: abc.Mapping[str, float] = field(default_factory=dict)
    classes: abc.Mapping[str, PriorityClass] = field(default_factory=dict)


NO_RECORDS = Tenancy()


class Requests:
    """From rows of traffic to requests. The paths of tenants are made once; they are as many as the tenants.

    shares_prefixes  prompts that the traffic says begin alike do; else no two do
    """

    def __init__(self, tenancy: Tenancy, *, shares_prefixes: bool = False) -> None:
        self._tenancy = tenancy
        self._shares_prefixes = shares_prefixes
        self._paths: dict[str, tuple[PathNode, ...]] = {}
        self._classes = dict(tenancy.classes)

    def make(self, arrival: Arrival, index: int) -> Request:
        """The request of an arrival."""
        path = self._paths.get(arrival.tenant)
        if path is None:
            path = self._paths[arrival.tenant] = self._path(arrival.tenant)
        priority_class = self._classes.get(arrival.priority_class)
        if priority_class is None:
            priority_class = self._classes[arrival.priority_class] = PriorityClass(arrival.priority_class)
        deadline_after = arrival.deadline_after_ns
        return Request(
            generation_id=f"r{index}",
            path=path,
            prompt_token_ids=self._prompt(arrival, index),
            max_output_tokens=arrival.num_output_tokens,
            arrived_at=Nanos(arrival.at_ns),
            priority_class=priority_class,
            deadline=None if deadline_after is None else Nanos(arrival.at_ns + deadline_after),
        )

    def _prompt(self, arrival: Arrival, index: int) -> tuple[int, ...]:
        """What it shares with others, then a range of its own: where it shares nothing, nobody lists the tokens."""
        num_tokens, size = arrival.num_prompt_tokens, arrival.prefix_block_size
        own = range(index << TOKEN_ID_BITS, (index << TOKEN_ID_BITS) + num_tokens)
        if not (self._shares_prefixes and arrival.prefix_ids):
            return cast("tuple[int, ...]", own)
        shared: list[int] = []
        for number in arrival.prefix_ids[: -(-num_tokens // size)]:
            first = -((number % PREFIX_IDS) << TOKEN_ID_BITS) - 1
            shared += range(first, first - size, -1)
        return (*shared[:num_tokens], *own[len(shared) :])

    def _path(self, tenant: str) -> tuple[PathNode, ...]:
        nodes: list[PathNode] = []
        prefix = ""
        for node_id in tenant.split("/"):
            prefix = f"{prefix}/{node_id}" if prefix else node_id
            nodes.append(PathNode(node_id, self._tenancy.weights.get(prefix, 1.0)))
        return tuple(nodes)
