"""One tenant's prompt of the whole context against another's eight decoders: the live engine with the real model.

The prompt alone first; then the decoders alone for some seconds, the prompt beside them until its first token, and the
decoders alone again: their solo time per token is the mean of before and after, as it grows with the context that they
read. Shares are of engine time: with equal weights each side is due one half of what it has alone. A gap is the time
between two tokens of one decoder while the prompt is computed; `max_gap_chunks` counts it in steps with a chunk of the
same run (the median), `max_gap_full_chunks` in steps of the prompt alone, whose chunks are as large as a step allows.
"""

from collections import abc
from dataclasses import dataclass

from tests.bench.live_engine import NANOS_PER_S, Job, LiveEngine, Run, Step, percentile
from tests.bench.report import Report, arguments
from tests.bench.step_table import step_table

POOL_TOKENS = 24_576
NUM_DECODERS = 8
DECODER_PROMPT, DECODER_OUTPUT = 32, 1_900
SOLO_S = 6.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """Moments of a run with a prompt: the decoders run, the prompt is due, its first token, the end."""

    began_ns: int
    due_ns: int
    first_ns: int
    over_ns: int


def decoders() -> list[Job]:
    return [Job(0.0, "decoders", DECODER_PROMPT, DECODER_OUTPUT)] * NUM_DECODERS


def serve_prompt_alone(engine: LiveEngine, num_tokens: int, seed: int) -> Run:
    return engine.serve([Job(0.0, "prompt", num_tokens, 1)], _prompt_is_done, seed=seed)


def serve_beside(engine: LiveEngine, num_tokens: int, solo_s: float, seed: int) -> Run:
    """The prompt is due `solo_s` after the decoders; the run is over as long after its first token."""

    def is_over(run: Run) -> bool:
        first = run.of("prompt")[:1]
        if not first or not first[0].token_ns:
            return False
        return run.elapsed_s > (first[0].token_ns[0] - run.began_ns) / NANOS_PER_S + solo_s

    return engine.serve([*decoders(), Job(solo_s, "prompt", num_tokens, 1)], is_over, seed=seed)


def timeline(run: Run) -> Timeline:
    prompt = run.of("prompt")[0]
    all_run = max(call.token_ns[0] for call in run.of("decoders"))
    return Timeline(all_run, prompt.due_ns, prompt.token_ns[0], run.over_ns)


def rate(run: Run, begin_ns: int, end_ns: int) -> float:
    """The decoders' tokens a second in a span."""
    num_tokens = sum(begin_ns < at <= end_ns for call in run.of("decoders") for at in call.token_ns)
    return num_tokens / (end_ns - begin_ns) * NANOS_PER_S


def largest_gap_ms(run: Run, begin_ns: int, end_ns: int) -> float:
    """Between two tokens of one decoder, of which the later is in the span."""
    gaps = [
        later - earlier
        for call in run.of("decoders")
        for earlier, later in zip(call.token_ns, call.token_ns[1:], strict=False)
        if begin_ns < later <= end_ns
    ]
    return max(gaps) / 1e6


def mixed_steps(run: Run, span: Timeline) -> list[Step]:
    """Those with a chunk beside decodes."""
    return [
        step
        for step in run.steps
        if span.due_ns < step.ended_ns <= span.first_ns and step.num_chunk_tokens and step.num_decodes
    ]


def compare(alone: Run, beside: Run) -> dict[str, float]:
    """One repetition."""
    span = timeline(beside)
    before, after = rate(beside, span.began_ns, span.due_ns), rate(beside, span.first_ns, span.over_ns)
    solo_rate = 2 / (1 / before + 1 / after)
    kept = rate(beside, span.due_ns, span.first_ns) / solo_rate
    solo_s = alone.calls[0].ttft_s
    slowdown = beside.of("prompt")[0].ttft_s / solo_s
    mixed = [step.ms for step in mixed_steps(beside, span)]
    gap_ms = largest_gap_ms(beside, span.due_ns, span.first_ns)
    full_ms = percentile([step.ms for step in alone.steps if step.num_chunk_tokens > 1], 0.5)
    return {
        "decoders_over_fair_share": kept / 0.5,
        "long_prompt_over_fair_share": 1 / slowdown / 0.5,
        "max_gap_chunks": gap_ms / percentile(mixed, 0.5),
        "max_gap_full_chunks": gap_ms / full_ms,
        "decode_rate_kept": kept,
        "long_prompt_over_solo": slowdown,
        "long_prompt_solo_s": solo_s,
        "decoders_solo_tokens_per_s": solo_rate,
        "max_gap_ms": gap_ms,
        "chunk_step_p50_ms": percentile(mixed, 0.5),
        "chunk_step_max_ms": max(mixed),
        "full_chunk_step_p50_ms": full_ms,
        "chunk_tokens_p50": percentile([step.num_chunk_tokens for step in mixed_steps(beside, span)], 0.5),
        "solo_tokens_per_s": alone.calls[0].job.prompt / solo_s,
    }


def explain(engine: LiveEngine, alone: Run, beside: Run) -> None:
    """The steps of both runs, and what the prices say of them."""
    span = timeline(beside)
    print("prompt alone\n" + step_table(alone.steps))
    print("beside\n" + step_table([s for s in beside.steps if span.due_ns < s.ended_ns <= span.first_ns]))
    print("decoders alone\n" + step_table([s for s in beside.steps if not s.num_chunk_tokens]))
    print(engine.backend.calibrator.prices)
    shown = mixed_steps(beside, span)
    print("\n".join(f"{s.num_decodes}d+{s.num_chunk_tokens}p {s.ms:.0f} ms" for s in shown[:6] + shown[-6:]))


def _prompt_is_done(run: Run) -> bool:
    return bool(run.left) and not run.left["prompt"]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", action="store_true", help="also print what the steps held")
    args = parser.parse_args()
    engine = LiveEngine(num_device_blocks=POOL_TOKENS // 16, block_size=16)
    context = engine.config.max_model_len
    num_tokens = min(context, 2_048 if args.quick else context) - 1
    solo_s = 4.0 if args.quick else SOLO_S
    serve_prompt_alone(engine, 512, 99)  # warm-up
    report = Report(
        "long_prompt",
        engine.describe()
        | {"prompt": num_tokens, "context": context, "decoders": NUM_DECODERS, "decoders_alone_s": 2 * solo_s},
    )
    for repetition in range(1 if args.quick else 3):
        sides: list[abc.Callable[[], Run]] = [
            lambda: serve_prompt_alone(engine, num_tokens, repetition),  # noqa: B023  called in this turn
            lambda: serve_beside(engine, num_tokens, solo_s, repetition),  # noqa: B023
        ]
        if repetition % 2:
            beside, alone = sides[1](), sides[0]()
        else:
            alone, beside = sides[0](), sides[1]()
        report.add(**compare(alone, beside))
        if args.steps:
            explain(engine, alone, beside)
    report.publish(args.json)


if __name__ == "__main__":
    main()
