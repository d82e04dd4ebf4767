"""How much of a step is not the model's arithmetic: scheduling, inputs, sampling, and telling of tokens.

Decoding at two batch sizes on the live engine. A step lasts from the end of the one before to its own, so that nothing
between two is left out; arithmetic is what the layers and the head take of it.
"""

import time
from dataclasses import dataclass, field

from engine import machine
from tests.bench.live_engine import Job, LiveEngine, Run
from tests.bench.report import Report, arguments

BATCHES = (1, 32)
PROMPT, NUM_FIRST = 32, 8  # of the steps, left out


@dataclass(slots=True)
class Arithmetic:
    """When the model computed, in nanoseconds of `time.monotonic_ns`."""

    spans: list[tuple[int, int]] = field(default_factory=list)
    began_ns: int = 0

    def watch(self, engine: LiveEngine) -> None:
        """From now on `engine`'s model is watched. It computes one part after the other."""
        module = engine.backend.runner._model.module
        for part in (module.model, module.lm_head, module.likeliest_head):
            part.register_forward_pre_hook(self._begin)
            part.register_forward_hook(self._end)

    def within(self, began_ns: int, ended_ns: int) -> int:
        return sum(ended - began for began, ended in self.spans if began_ns < began and ended <= ended_ns)

    def _begin(self, *_: object) -> None:
        self.began_ns = time.monotonic_ns()

    def _end(self, *_: object) -> None:
        self.spans.append((self.began_ns, time.monotonic_ns()))


def overhead_share(run: Run, arithmetic: Arithmetic, batch: int) -> tuple[float, float]:
    """Of the steps with nothing but `batch` decodes: the part that is no arithmetic, and milliseconds a step."""
    pairs = list(zip(run.steps, run.steps[1:], strict=False))[NUM_FIRST:]
    full = [
        (before.ended_ns, step.ended_ns) for before, step in pairs if (step.num_decodes, step.num_chunks) == (batch, 0)
    ]
    whole = sum(ended - began for began, ended in full)
    return 1 - sum(arithmetic.within(*span) for span in full) / whole, whole / len(full) / 1e6


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--quantization", default="int8", choices=("none", "int8"))
    parser.add_argument("--threads", type=int, default=machine.num_cores())
    args = parser.parse_args()
    engine = LiveEngine(
        num_device_blocks=1024,
        block_size=16,
        device="cpu",
        dtype=args.dtype,
        quantization=args.quantization,
        num_threads=args.threads,
    )
    arithmetic = Arithmetic()
    arithmetic.watch(engine)
    report = Report("step_overhead", engine.describe() | {"quantization": args.quantization, "prompt": PROMPT})
    num_output = 32 if args.quick else 160
    for repetition in range(1 if args.quick else 3):
        for batch in BATCHES:
            jobs = [Job(0.0, "bench", PROMPT, num_output)] * batch
            run = engine.serve(
                jobs, lambda run, batch=batch: len(run.calls) == batch and not any(run.left.values()), seed=repetition
            )
            share, step_ms = overhead_share(run, arithmetic, batch)
            report.add(**{f"overhead_share_b{batch}": share, f"step_ms_b{batch}": step_ms})
    report.publish(args.json)


if __name__ == "__main__":
    main()
