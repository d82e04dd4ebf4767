"""Traffic on which a rule that looks right breaks a theorem: one entry per pitfall, the same for model and scheduler.

`breach` is what is found with the changed rule and never with the true one: a kind of the observer's, or

    dispatch    g, alone in its tenant, waits longer for its first chunk than `limit` steps
    starved     f is served less than `limit` times what the true rule serves it
    throughput  all together are served less than `limit` times what the true rule serves them
"""

from dataclasses import dataclass

from tests.fairness.ledger import Key
from tests.fairness.machine import Machine
from tests.fairness.runs import Arrival, Command, Flood, Source

F: Key = ("default", "o", "f")
G: Key = ("default", "o", "g")
H: Key = ("default", "o", "h")
E: Key = ("default", "p", "e")


@dataclass(frozen=True, slots=True)
class Counterexample:
    change: str
    breach: str
    machine: Machine
    traffic: tuple[Source, ...]
    num_steps: int
    limit: float = 0.0


def _replaced(leaf: Key, num_prompt_tokens: int, max_output_tokens: int, *, every: int, stop: int) -> list[Source]:
    """A request that is cancelled every few steps, and another in its place before the next plan."""
    sources: list[Source] = []
    for step in range(0, stop, every):
        sources.append(Command(step, "cancel", f"{leaf[-1]}{step - every}"))
        sources.append(Arrival(step, leaf, num_prompt_tokens, max_output_tokens, f"{leaf[-1]}{step}"))
    return sources


def _taking_turns(stop: int) -> list[Source]:
    """g and h in turn have one request that does not fit, for one plan each."""
    sources: list[Source] = []
    for step in range(stop):
        leaf = (G, H)[step % 2]
        sources.append(Command(step, "cancel", f"turn{step - 1}"))
        sources.append(Arrival(step, leaf, 400, 10, f"turn{step}"))
    return sources


# f decodes long outputs while nobody waits, after g left with little; then both flood.
_QUIET_THEN_FLOOD = (
    Arrival(0, G, 16, 2),
    *(Arrival(0, F, 16, 600, f"long{i}") for i in range(6)),
    Flood(F, 32, 32, 6, 560),
    Flood(G, 32, 32, 12, 560),
)
_ROOMY = Machine(num_device_blocks=1536)
_FULL = Machine(num_device_blocks=40, num_host_blocks=1000, threshold=2400, max_preemptions=10**6)
_ENTRANTS_BEHIND_A_HEAD = (
    Flood(F, 8, 200, 6),
    Arrival(100, H, 200, 10),
    *(Arrival(step, G, 40, 4) for step in range(104, 900, 40)),
)

COUNTEREXAMPLES = (
    Counterexample("empty_takes_last", "gap", _ROOMY, _QUIET_THEN_FLOOD, 1200),
    Counterexample("empty_keeps_floor", "gap", _ROOMY, _QUIET_THEN_FLOOD, 1200),
    # g is never without a request: one long decode beside a flood, then a flood of its own.
    Counterexample(
        "lift_on_activation",
        "gap",
        Machine(),
        (Flood(F, 16, 40, 8), Arrival(0, G, 8, 650), Flood(G, 32, 32, 6, 600)),
        1000,
    ),
    Counterexample(
        "own_blocks_excuse", "gap", Machine(num_device_blocks=60), (Flood(F, 16, 400, 6), Flood(G, 300, 40, 6)), 2500
    ),
    # The denied request of an organization is replaced every few steps, while another tenant of it is satisfied.
    Counterexample(
        "org_flag_recomputed",
        "gap",
        Machine(has_entry_rule=False, num_device_blocks=62),
        (Flood(E, 8, 60, 6), Arrival(0, F, 1, 480), *_taking_turns(480)),
        480,
    ),
    Counterexample(
        "flag_dies",
        "gap",
        Machine(has_entry_rule=False, num_device_blocks=60),
        (Flood(F, 8, 60, 6), *_replaced(G, 400, 10, every=4, stop=480)),
        480,
    ),
    # g has room for one long request at a time, then it can use everything.
    Counterexample(
        "uncapped",
        "gap",
        Machine(is_strict=False),
        (Flood(F, 16, 8, 6), Flood(G, 480, 150, 6, 0, 1500), Flood(G, 16, 16, 12, 1500)),
        2200,
    ),
    # f, of weight 4, borrows what g cannot use: a step's cost counts a quarter for it.
    Counterexample(
        "step_bound_unweighted",
        "lemma",
        Machine(is_strict=False, weights={F: 4.0}),
        (Flood(F, 16, 8, 6), Flood(G, 480, 150, 6)),
        600,
    ),
    # Of g's burst the last ones have waited for long.
    Counterexample(
        "aged_overtakes", "gap", Machine(), (Flood(F, 16, 60, 2), *(Arrival(10, G, 60, 20) for _ in range(40))), 400
    ),
    Counterexample(
        "held_is_backlogged",
        "idle",
        Machine(),
        (Flood(F, 16, 64, 4), Arrival(0, G, 16, 64, "held"), Command(5, "hold", "held")),
        200,
    ),
    Counterexample(
        "protected_runs", "gap", Machine(min_resident_steps=30), (Flood(F, 16, 60, 8), Arrival(10, G, 620, 40)), 300
    ),
    Counterexample(
        "pause_below_swap",
        "idle",
        Machine(threshold=192, num_device_blocks=40, has_entry_rule=False),
        (Flood(F, 16, 280, 1), Arrival(60, G, 200, 40), Flood(F, 16, 200, 3)),
        300,
    ),
    Counterexample(
        "cap_guards_seizure",
        "idle",
        Machine(max_preemptions=1, num_device_blocks=40, has_entry_rule=False),
        (Flood(F, 150, 100, 1), Flood(G, 200, 40, 1)),
        300,
    ),
    Counterexample(
        "kept_claim",
        "idle",
        Machine(num_device_blocks=40),
        (Flood(F, 16, 280, 2), Flood(G, 200, 40, 2), Flood(H, 100, 100, 2)),
        300,
    ),
    # Entrants keep coming while f computes its context again.
    Counterexample(
        "regaining_is_seized",
        "starved",
        Machine(num_device_blocks=40, threshold=4000, max_preemptions=100),
        (
            Flood(F, 260, 40, 1),
            *(Arrival(step, (*F[:2], f"e{step % 3}"), 80, 1) for step in range(20, 900, 8)),
        ),
        900,
        limit=0.5,
    ),
    # Another organization's tenants are young, so the smallest counter of all says nothing about these siblings.
    Counterexample(
        "global_lift",
        "gap",
        Machine(),
        (Flood(F, 16, 40, 8), Flood(E, 16, 40, 8, 500), Flood(G, 16, 40, 8, 510)),
        900,
    ),
    # h needs more than its share and cannot seize; g, behind it, could.
    Counterexample("first_head_claims", "dispatch", _FULL, _ENTRANTS_BEHIND_A_HEAD, 900, limit=4),
    Counterexample("reservations_count_against_claim", "dispatch", _FULL, _ENTRANTS_BEHIND_A_HEAD, 900, limit=4),
    Counterexample(
        "growth_eats_claim",
        "idle",
        Machine(
            num_host_blocks=1000,
            min_resident_steps=4,
            copy_out_steps=2,
            copy_in_steps=1,
            max_preemptions=10**6,
        ),
        (Flood(F, 16, 400, 8), *(Arrival(step, G, 100, 8) for step in range(104, 2000, 40))),
        2000,
    ),
)
