"""What random traffic is made of: settings of tiny pools, requests by their shape, policies and prices."""

from collections import abc
from dataclasses import dataclass

from hypothesis import strategies as st

from engine.core.config import AdmissionReserve, PreemptionChoice
from engine.core.costs import Prices, StepCosts
from engine.core.policy import PreemptionPolicy, SchedulingPolicy, SequenceView, Service, Standing
from engine.core.types import Nanos, PriorityClass
from engine.plugins import PREEMPTION_GROUP, SCHEDULING_GROUP, installed, load_preemption_policy, load_scheduling_policy
from tests.builders import STEP_NS


class Arbitrary:
    """Preempts in an order that has nothing to do with the sequences, and now and then nobody."""

    def victims(
        self, resident: abc.Sequence[SequenceView], claimant: SequenceView, standing: Standing, now: Nanos
    ) -> abc.Iterator[SequenceView]:
        turn = now // STEP_NS
        return iter(sorted(resident, key=lambda seq: (seq.arrival_index * 7 + turn) % 5)[: turn % 4])


SCHEDULING: dict[str, tuple[str, dict[str, str]]] = {name: (name, {}) for name in installed(SCHEDULING_GROUP)} | {
    "fair, tight": ("fair", {"theta": "1", "class_ageing_ms": "3"}),
    "fair, strict": ("fair", {"mode": "strict"}),
    "fair, strict and tight": ("fair", {"mode": "strict", "theta": "1"}),
}
PREEMPTION = (*installed(PREEMPTION_GROUP), "arbitrary")


def make_policy(name: str, charged: list[Service]) -> SchedulingPolicy:
    """A new policy of SCHEDULING; what it is charged with is appended to `charged`."""
    policy = load_scheduling_policy(*SCHEDULING[name])
    charge = policy.charge

    def note(service: Service) -> None:
        charged.append(service)
        charge(service)

    policy.charge = note  # type: ignore[method-assign] # the policy keeps its type, by which counters are carried over
    return policy


def make_victims(name: str) -> PreemptionPolicy:
    """A new policy of PREEMPTION."""
    return Arbitrary() if name == "arbitrary" else load_preemption_policy(name, {})


CLASSES = (
    PriorityClass("default"),
    PriorityClass("high", -1),
    PriorityClass("batch", 5, min_share=0.2),
    PriorityClass("pinned", 3, preemptible=False),
)
PRICES = st.builds(
    Prices,
    st.builds(
        StepCosts,
        base_ns=st.sampled_from([0.0, 300_000.0]),
        prefill_token_ns=st.sampled_from([1_000.0, 200_000.0, 1_000_000.0]),
        prefill_key_ns=st.sampled_from([0.0, 2_000.0]),
        decode_ns=st.sampled_from([0.0, 50_000.0]),
        copied_block_ns=st.sampled_from([0.0, 10_000.0]),
    ),
    copy_out_block_ns=st.sampled_from([100.0, 300_000.0]),
    copy_in_block_ns=st.sampled_from([100.0, 300_000.0]),
    copy_launch_ns=st.sampled_from([0.0, 20_000.0]),
    are_measured=st.booleans(),
)


LINK_SHARES = [1.0, 1.0, 0.5, 0.05]


@st.composite
def limits(draw: st.DrawFn) -> dict[str, object]:
    """A pool for a few requests at most, and steps of a few tokens."""
    block_size = draw(st.integers(1, 5))
    num_blocks = draw(st.integers(6, 16))
    is_chunked = draw(st.integers(0, 4)) > 0
    max_num_seqs = draw(st.integers(2, 5))
    chunk = draw(st.integers(0, 8)) if is_chunked else block_size * num_blocks
    return {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + chunk,
        "block_size": block_size,
        "num_device_blocks": num_blocks,
        "enable_chunked_prefill": is_chunked,
        "max_prefill_share": draw(st.sampled_from([0.2, 0.5, 1.0])) if is_chunked else 1.0,
        "growth_reserve_tokens": draw(st.sampled_from([0, 0, 0, 3, 32])),
        "admission_reserve": draw(st.sampled_from([AdmissionReserve.GROWTH] * 4 + list(AdmissionReserve))),
        "admission_interval": draw(st.sampled_from([1, 1, 1, 4])),
        "mix_prefill": draw(st.sampled_from([True, True, True, False])),
        "target_step_ms": draw(st.sampled_from([0.0, 0.0, 0.0, 3.0])),
        "num_draft_tokens": draw(st.sampled_from([0, 1, 3, 7])),
        "max_drafting_seqs": draw(st.sampled_from([1, 32, 32])),
        "min_draft_acceptance": draw(st.sampled_from([0.0, 0.0, 0.3])),
        "draft_token_ns": draw(st.sampled_from([0.0, 0.0, 50_000.0])),
        "enable_prefix_caching": draw(st.booleans()),
        "cache_min_share": draw(st.sampled_from([0.0, 0.2])),
        "cache_max_share": draw(st.sampled_from([0.3, 1.0])),
        **draw(swap_limits()),
    }


@st.composite
def swap_limits(draw: st.DrawFn) -> dict[str, object]:
    """Host blocks from none to enough, and what may be done with them."""
    num_host_blocks = draw(st.sampled_from([0, 1, 2, 3, 5, 8, 13, 64]))
    modes = [mode for mode in PreemptionChoice if num_host_blocks or mode is not PreemptionChoice.SWAP]
    return {
        "num_host_blocks": num_host_blocks,
        "preemption_mode": draw(st.sampled_from(modes)),
        "partial_swap": draw(st.booleans()),
        "min_resident_steps": draw(st.sampled_from([0, 0, 1, 3, 8])),
        "max_preemptions": draw(st.sampled_from([0, 1, 4])),
        "link_share": draw(st.sampled_from(LINK_SHARES)),
    }


@dataclass(frozen=True)
class Shape:
    """A request to be. Sizes are parts of what one request can hold, and may add up to too much."""

    tenant: str
    prompt_part: float
    output_part: float
    priority_class: PriorityClass = CLASSES[0]
    granted_output_tokens: int | None = None
    deadline: int | None = None
    queue_deadline: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    speculates: bool = True
    text: int | None = None
    salt: bytes = b""
    is_sample: bool = False

    def prompt(self, number: int, num_tokens: int) -> list[int]:
        """The tokens of request `number`: two of one text are alike as far as both go, but for the last token where one
        of them is no sample."""
        first = number if self.text is None else 1_000 + self.text
        last = 5 if self.is_sample else number % 97
        return [(first * 31 + position) % 97 for position in range(num_tokens - 1)] + [last]


TENANTS = st.sampled_from("abc")
PARTS = st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.7, 0.9])
# Together more than the pool holds, and growing after they were admitted.
LONG = st.builds(Shape, TENANTS, st.sampled_from([0.01, 0.1, 0.3]), st.sampled_from([0.3, 0.5, 0.6]))
ANY = st.builds(
    Shape,
    TENANTS,
    PARTS,
    PARTS,
    st.sampled_from([CLASSES[0], *CLASSES]),
    granted_output_tokens=st.none() | st.integers(0, 5),
    deadline=st.none() | st.integers(0, 60),
    queue_deadline=st.none() | st.integers(0, 30),
    stop_token_ids=st.frozensets(st.integers(0, 96), max_size=3),
    speculates=st.sampled_from([True, True, False]),
    text=st.none() | st.integers(0, 1),
    salt=st.sampled_from([b"", b"", b"public"]),
    is_sample=st.booleans(),
)
