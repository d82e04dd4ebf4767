"""Everything at once: cache, drafts, chunks, ways to preempt, choices of one prompt, grammars, in each arithmetic.

What the engine says is held against `transformers`, which computes each text whole, in float32, without any of it: the
log-probability of every token that was emitted is the reference's, up to what the arithmetic rounds. In float32 each
output is, token by token, the one that the request gets with the engine to itself. Every free block is poisoned, so
that whoever reads one that is not its own says nonsense; invariants are checked after each step.
"""

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch

from engine.core.events import Preempted
from engine.core.types import PreemptionMode, SamplingParams
from engine.model.loader import load_model
from engine.runner.proposers import ModelDrafts, NgramDrafts
from tests.model import tiny_llama
from tests.runner.test_constrained_outputs import Held
from tests.runner.test_guided_drafts import Ended, random_constraint
from tests.runner.test_scheduled_swap import MODES, make_request

ALONE = 1000  # steps of a turn that nobody cuts short
NUM_PROMPTS = 7
NUM_BLOCKS = 22  # of four tokens: the longest request needs 21
ARITHMETICS = ("float32", "bfloat16", "int8")
# Of what the other arithmetic does to 144,000 log-probabilities of the reference: none of some hundred is farther off
# than half as much again as the farthest, and they spread no more than twice as much.
FARTHEST, SPREAD = 1.5, 2.0


@dataclass(frozen=True)
class Combination:
    """What is on. `drains`: copies have ended before the next plan, so that a run takes the same course each time."""

    mode: str
    arithmetic: str
    caching: bool
    drafts: str
    chunk: int
    num_choices: int
    slice_steps: int
    drains: bool = True
    seed: int = 0

    @classmethod
    def random(cls, seed: int) -> "Combination":
        rng = random.Random(seed)
        return cls(
            mode=rng.choice(list(MODES)),
            arithmetic=rng.choice(ARITHMETICS),
            caching=rng.random() < 0.5,
            drafts=rng.choice(["off", "ngram", "draft"]),
            chunk=rng.choice([7, 24, 64]),
            num_choices=rng.choice([1, 2, 3]),
            slice_steps=rng.choice([1, 2, 5]),
            drains=rng.random() < 0.5,
            seed=seed,
        )


# Each value of a setting stands beside several of each other one.
COMBINATIONS = (
    Combination("recompute", "float32", caching=True, drafts="ngram", chunk=7, num_choices=2, slice_steps=1),
    Combination("swap", "bfloat16", caching=False, drafts="draft", chunk=24, num_choices=1, slice_steps=2),
    Combination("partial swap", "int8", caching=True, drafts="ngram", chunk=64, num_choices=2, slice_steps=2),
    Combination("cheaper", "float32", caching=False, drafts="draft", chunk=64, num_choices=2, slice_steps=5),
    Combination("short of host blocks", "int8", caching=False, drafts="off", chunk=7, num_choices=3, slice_steps=1),
    Combination("slow link", "bfloat16", caching=True, drafts="ngram", chunk=24, num_choices=3, slice_steps=2),
)


class Watched(Ended):
    """Counts how sequences were preempted, and sees whether one was swapped in part."""

    def __init__(self, model, slice_steps, *, drains: bool = False, **fields) -> None:
        super().__init__(model, slice_steps, **fields)
        self._drains = drains
        self.preempted: Counter[PreemptionMode] = Counter()
        self.was_swapped_in_part = False

    def compute(self, plan):
        events = super().compute(plan)
        while self._drains and self.scheduler.num_copies_in_flight:
            assert self._copy_ended.wait(30)
            self._copy_ended.clear()
            events += self.scheduler.complete_copies(self.runner.take_completed(), self.now)
        return events

    def _take(self, events) -> None:
        self.preempted.update(event.mode for event in events if isinstance(event, Preempted))
        swapped = self.scheduler.lifecycle.swapped
        self.was_swapped_in_part = self.was_swapped_in_part or any(seq.block_table.device for seq in swapped)
        super()._take(events)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    smaller = tiny_llama.make_model(**sizes, num_key_value_heads=1)
    return tiny_llama.write_folder(path / "m", tiny_llama.make_model()), tiny_llama.write_folder(path / "s", smaller)


@pytest.fixture(scope="module")
def models(folders):
    """By arithmetic, the model and one that drafts for it."""
    return {
        name: [
            load_model(
                folder,
                dtype="float32" if name == "int8" else name,
                device="cpu",
                quantization="int8" if name == "int8" else None,
            )
            for folder in folders
        ]
        for name in ARITHMETICS
    }


class Rounding(torch.nn.Module):
    """A product of the reference in 8 bits: each row of both sides is rounded to 127 steps of its largest number."""

    def __init__(self, exact: torch.nn.Linear) -> None:
        super().__init__()
        self._weight = _rounded(exact.weight.detach())

    def forward(self, x):
        return torch.nn.functional.linear(_rounded(x), self._weight)


def _rounded(x):
    step = x.abs().amax(-1, keepdim=True) / 127
    return (x / step).round() * step


def in_8_bits():
    model = tiny_llama.make_model()
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            model.set_submodule(name, Rounding(module))
    return model


@dataclass(frozen=True)
class Tolerance:
    """How far one log-probability may be from the reference's, and the root of their mean square."""

    farthest: float
    spread: float


@pytest.fixture(scope="module")
def tolerances() -> dict[str, Tolerance]:
    """By arithmetic. In float32 sums are taken in another order; of the others it is measured what they do to the
    reference itself."""
    texts = torch.randint(2, 290, (8, 60), generator=torch.Generator().manual_seed(1))
    found = {"float32": Tolerance(1e-4, 1e-4)}
    with torch.inference_mode():
        expected = tiny_llama.make_model()(texts).logits.log_softmax(-1)
        for arithmetic, model in (("bfloat16", tiny_llama.make_model().bfloat16()), ("int8", in_8_bits())):
            wrong = model(texts).logits.float().log_softmax(-1) - expected
            found[arithmetic] = Tolerance(FARTHEST * wrong.abs().max().item(), SPREAD * wrong.std().item())
    return found


def make_requests(held: Held, seed: int, num_choices: int):
    """Several choices each of a few prompts that begin alike, with whatever may be asked for, of two tenants."""
    rng = random.Random(seed)
    beginning, requests = [rng.randrange(2, 290) for _ in range(24)], []
    for index in range(NUM_PROMPTS):
        prompt = (*beginning[: rng.choice([0, 8, 24])], *(rng.randrange(2, 290) for _ in range(rng.randint(1, 36))))
        sampling = rng.choice(
            [
                SamplingParams(temperature=0.0),
                SamplingParams(temperature=0.7, top_p=0.9, top_k=40),
                SamplingParams(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3),
                SamplingParams(logit_biases=((rng.randrange(300), 4.0),), min_p=0.01),
            ]
        )
        constraint = random_constraint(held, rng) if rng.random() < 0.4 else None
        for choice in range(num_choices):
            number = index * num_choices + choice
            requests.append(
                replace(
                    make_request(number),
                    prompt_token_ids=prompt,
                    max_output_tokens=rng.randint(1, 24),
                    sampling=replace(sampling, seed=rng.randrange(2**32), num_logprobs=1, constraint=constraint),
                    stop_token_ids=frozenset(held.model.info.eos_token_ids),
                )
            )
    return requests


def serve(model, requests, slice_steps=ALONE, **fields) -> Watched:
    served = Watched(model, slice_steps, **fields)
    for request in requests:
        served.add(request)
    served.run()
    return served


def check_against_reference(served: Watched, requests, tolerance: Tolerance) -> None:
    reference, wrong = tiny_llama.make_model(), []
    for request in requests:
        name, output = request.generation_id, served.outputs[request.generation_id]
        assert len(served.logprobs[name]) == len(output) > 0
        text = torch.tensor([[*request.prompt_token_ids, *output]])
        with torch.inference_mode():
            logits = reference(text[:, :-1]).logits[0, -len(output) :].double()
        expected = logits.log_softmax(-1).gather(1, text[0, -len(output) :, None])[:, 0]
        got = torch.tensor([entry.logprob for entry in served.logprobs[name]], dtype=torch.float64)
        wrong.append(got - expected)
    assert torch.cat(wrong).abs().max() <= tolerance.farthest
    assert torch.cat(wrong).square().mean().sqrt() <= tolerance.spread


def check_was_preempted(served: Watched, combination: Combination) -> None:
    mode = combination.mode
    swaps, recomputes = (served.preempted[each] for each in (PreemptionMode.SWAP, PreemptionMode.RECOMPUTE))
    stats = served.stats
    assert stats.num_preemptions > 0
    assert served.preempted[PreemptionMode.PAUSE] > 0
    if mode == "recompute":
        assert (swaps, stats.num_swaps) == (0, 0)
        assert recomputes > 0
    else:
        assert stats.num_swaps >= swaps > 0
        assert stats.num_copied_in > 0
    if mode == "partial swap":
        assert served.was_swapped_in_part
    elif mode == "swap" and not combination.caching:  # blocks that others read stay where they are
        assert not served.was_swapped_in_part
    if mode in ("cheaper", "short of host blocks"):
        assert recomputes > 0


def check(models, tolerances, combination: Combination) -> Watched:
    model, smaller = models[combination.arithmetic]
    drafts = {"off": None, "ngram": NgramDrafts(1), "draft": ModelDrafts(smaller)}[combination.drafts]
    fields = {"num_draft_tokens": 4, "min_draft_acceptance": 0.0} if drafts else {}
    requests = make_requests(Held(model), combination.seed, combination.num_choices)
    served = serve(
        model,
        requests,
        combination.slice_steps,
        drains=combination.drains,
        drafts=drafts,
        num_device_blocks=NUM_BLOCKS,
        enable_prefix_caching=combination.caching,
        max_num_batched_tokens=combination.chunk,
        **fields,
        **MODES[combination.mode],
    )
    assert not any(error for _, error in served.ends.values())
    check_against_reference(served, requests, tolerances[combination.arithmetic])
    if combination.arithmetic == "float32":
        alone: dict[str, list[int]] = {}
        for request in requests:
            alone |= serve(model, [request]).outputs
        assert served.outputs == alone
    served.scheduler.lifecycle.blocks.forget_cached()
    assert len(list(served.scheduler.lifecycle.blocks.pool.free_ids)) == served.scheduler.config.num_device_blocks
    assert served.scheduler.lifecycle.rows.num_free == served.scheduler.config.max_num_seqs
    return served


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda each: f"{each.mode}, {each.arithmetic}")
def test_right_answers_with_everything_at_once(models, tolerances, combination):
    served = check(models, tolerances, combination)
    check_was_preempted(served, combination)
    totals = served.stats.totals
    assert (totals.num_drafted_tokens > 0) is (combination.drafts != "off")
    assert (totals.num_found_tokens > 0) is combination.caching


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_right_answers_in_any_combination(models, tolerances, seed):
    check(models, tolerances, Combination.random(seed))
