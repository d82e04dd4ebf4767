"""Prompt lookup against no speculation: tokens a second of one request at a time, with the real core and model.

copy-heavy  the model is asked to repeat a passage of the documentation, as it is for an edit of a file; greedy
no-repeat   it goes on with the first words of such a passage, drawn at temperature 1: what it says was not said before

Both sides serve the same requests in turn, each side first in every other round, and a round's ratio is that of its
tokens a second. They must say the same; where two logits nearly tie, the arithmetic may decide by how many rows it
computes together, so the shares of equal outputs are told, too. Prices are measured at the start as the engine does it.
"""

import time
from collections import abc
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.core.events import TokensEmitted
from engine.core.scheduler import Scheduler
from engine.core.types import Nanos, PathNode, Request, SamplingParams
from engine.model.info import LoadedModel
from engine.model.loader import load_model
from engine.plugins import load_preemption_policy, load_scheduling_policy
from engine.runner.draft_measurement import measure_draft_ns
from engine.runner.measurement import measure
from engine.runner.model_runner import ModelRunner
from engine.runner.proposers import DraftSource, ModelDrafts, NgramDrafts
from engine.speculation_settings import DEFAULT_MODEL_DRAFTS, DEFAULT_NGRAM_DRAFTS, SHORTEST_NGRAM
from tests.bench.report import Report, arguments

DOCS = Path(__file__).parents[2] / "docs"
PASSAGE_TOKENS = 160
START_TOKENS = 24
NUM_OUTPUT = 128
COPY_PROMPT = (
    "<|im_start|>user\nRepeat the following text exactly, and nothing else:\n\n{text}<|im_end|>\n"
    "<|im_start|>assistant\n{start}"
)


@dataclass(frozen=True, slots=True)
class Side:
    """One way to serve. `config` has the prices of drafts in it."""

    runner: ModelRunner
    config: SchedulerConfig
    prices: Prices


@dataclass(frozen=True, slots=True)
class Served:
    """What came of one set of requests."""

    outputs: tuple[tuple[int, ...], ...]
    tokens_per_s: float
    num_drafted: int
    num_accepted: int


def make_side(model: LoadedModel, drafts: DraftSource | None, num_draft_tokens: int) -> Side:
    config = SchedulerConfig(
        max_num_seqs=8,
        max_num_batched_tokens=256,
        block_size=16,
        num_device_blocks=256,
        max_model_len=min(2048, model.info.context_tokens),
        num_draft_tokens=num_draft_tokens if drafts is not None else 0,
    )
    runner = ModelRunner(model, config, drafts)
    runner.warm_up()
    prices = measure(runner, config).prices
    if isinstance(drafts, ModelDrafts):
        config = replace(config, draft_token_ns=measure_draft_ns(runner, config))
    return Side(runner, config, prices)


def serve(side: Side, requests: abc.Sequence[Request]) -> Served:
    """One after the other."""
    policies = load_scheduling_policy("fair", {}), load_preemption_policy("over_served", {})
    scheduler = Scheduler(side.config, *policies)
    scheduler.calibrate(side.prices, Nanos(0))
    outputs: list[tuple[int, ...]] = []
    began = time.perf_counter()
    for request in requests:
        scheduler.add(request, Nanos(time.monotonic_ns()))
        output: list[int] = []
        while (plan := scheduler.plan(Nanos(time.monotonic_ns()))) is not None:
            events = scheduler.commit(side.runner.execute(plan), Nanos(time.monotonic_ns()))
            for event in events:
                if isinstance(event, TokensEmitted):
                    output += event.token_ids
        outputs.append(tuple(output))
    elapsed_s = time.perf_counter() - began
    totals = scheduler.stats().totals
    rate = sum(map(len, outputs)) / elapsed_s
    return Served(tuple(outputs), rate, totals.num_drafted_tokens, totals.num_accepted_tokens)


def passages(tokenizer: Tokenizer, number: int) -> list[list[int]]:
    """Runs of the documentation's words, each from another place."""
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md")))
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids
    stride = (len(token_ids) - PASSAGE_TOKENS) // number
    return [token_ids[index * stride : index * stride + PASSAGE_TOKENS] for index in range(number)]


def copy_requests(tokenizer: Tokenizer, number: int) -> list[Request]:
    requests = []
    for index, passage in enumerate(passages(tokenizer, number)):
        text, start = tokenizer.decode(passage), tokenizer.decode(passage[:4])
        prompt = tokenizer.encode(COPY_PROMPT.format(text=text, start=start), add_special_tokens=False).ids
        requests.append(make_request(f"copy-{index}", prompt, SamplingParams(temperature=0.0)))
    return requests


def free_requests(tokenizer: Tokenizer, number: int) -> list[Request]:
    starts = [passage[:START_TOKENS] for passage in passages(tokenizer, number)]
    return [make_request(f"free-{index}", start, SamplingParams(seed=index)) for index, start in enumerate(starts)]


def make_request(generation_id: str, prompt: abc.Sequence[int], sampling: SamplingParams) -> Request:
    path = (PathNode("org", 1.0), PathNode("team", 1.0))
    return Request(generation_id, path, tuple(prompt), NUM_OUTPUT, Nanos(time.monotonic_ns()), sampling)


def compare(plain: Side, drafting: Side, requests: abc.Sequence[Request], *, is_odd: bool) -> dict[str, float]:
    """One round."""
    sides = (drafting, plain) if is_odd else (plain, drafting)
    served = {id(side): serve(side, requests) for side in sides}
    without, with_drafts = served[id(plain)], served[id(drafting)]
    equal = [ours == theirs for ours, theirs in zip(with_drafts.outputs, without.outputs, strict=True)]
    return {
        "ratio": with_drafts.tokens_per_s / without.tokens_per_s,
        "tokens_per_s": with_drafts.tokens_per_s,
        "acceptance": with_drafts.num_accepted / max(1, with_drafts.num_drafted),
        "drafted_share": with_drafts.num_drafted / sum(map(len, with_drafts.outputs)),
        "equal_outputs": sum(equal) / len(equal),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", type=Path, help="default: the model that is installed as a package")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--draft-model", type=Path, help="propose with this model instead of prompt lookup")
    parser.add_argument("--num-draft-tokens", type=int)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    number, rounds = (2, 1) if options.quick else (options.requests, options.rounds)
    model = load_model(options.model, dtype=options.dtype)
    drafts: DraftSource = NgramDrafts(SHORTEST_NGRAM)
    num_draft_tokens = options.num_draft_tokens or DEFAULT_NGRAM_DRAFTS
    if options.draft_model is not None:
        drafts = ModelDrafts(load_model(options.draft_model, dtype=options.dtype))
        num_draft_tokens = options.num_draft_tokens or DEFAULT_MODEL_DRAFTS
    plain, drafting = make_side(model, None, 0), make_side(model, drafts, num_draft_tokens)
    drafting = replace(drafting, prices=plain.prices)
    tokenizer = Tokenizer.from_str(model.info.tokenizer_json.decode())
    copies, free = copy_requests(tokenizer, number), free_requests(tokenizer, number)
    config = {"model": model.info.name, "dtype": model.info.dtype, "requests": number, "tokens": NUM_OUTPUT}
    report = Report("speculation", config | {"num_draft_tokens": num_draft_tokens, "batch": 1})
    compare(plain, drafting, copies[:1], is_odd=False)  # what happens only once
    for round_number in range(rounds):
        is_odd = round_number % 2 == 1
        copied, said = (compare(plain, drafting, each, is_odd=is_odd) for each in (copies, free))
        report.add(
            copy_heavy_speedup=copied["ratio"],
            no_repeat_ratio=said["ratio"],
            acceptance=copied["acceptance"],
            copy_heavy_tokens_per_second=copied["tokens_per_s"],
            no_repeat_tokens_per_second=said["tokens_per_s"],
            no_repeat_acceptance=said["acceptance"],
            no_repeat_drafted_share=said["drafted_share"],
            copy_heavy_equal_outputs=copied["equal_outputs"],
            no_repeat_equal_outputs=said["equal_outputs"],
        )
    report.publish(options.json)


if __name__ == "__main__":
    main()
