"""A runner without a model: the n-th output token of every sequence is FIRST_TOKEN + n, whatever was preempted.

So a client can tell from the ids alone that it got every token once and in order.
"""

import asyncio
import threading
import time
from types import SimpleNamespace

from engine.core.config import SchedulerConfig
from engine.core.plan import StepOutput, StepPlan

FIRST_TOKEN = 10
PACE_S = 0.005

CONFIG = SchedulerConfig(
    max_num_seqs=8, max_num_batched_tokens=64, block_size=4, num_device_blocks=64, max_model_len=512
)
# What the server reads of a ModelInfo, whose own module would import torch.
MODEL = SimpleNamespace(
    name="fake",
    architecture="llama",
    dtype="float32",
    quantization=None,
    parameter_count=1,
    context_tokens=CONFIG.max_model_len,
    vocabulary_size=1000,
    tokenizer_json=b"{}",
    chat_template="",
    bos_token_id=1,
    eos_token_ids=(240,),
    pad_token_id=None,
    unk_token_id=0,
    add_bos_token=False,
    model_hash="0" * 64,
    kv_bytes_per_token=8,
)


class FakeRunner:
    """`hold` keeps steps from running until `allow` lets some of them, or `release` all of them, go on.

    Copies end with the step that starts them; with `holds_copies` when the test says `complete`.
    """

    def __init__(self, step_s: float = 0.0) -> None:
        self._step_s = step_s
        self.num_steps = 0
        self.errors: list[Exception] = []
        self._permits = threading.Semaphore(0)
        self._is_free = True
        self._num_prompt_tokens: dict[int, int] = {}
        self.started_copies: list[int] = []
        self.holds_copies = False
        self.copy_errors: list[Exception] = []
        self._completed: list[int] = []
        self._wake = lambda: None

    def hold(self) -> None:
        self._is_free = False

    def allow(self, num_steps: int) -> None:
        self._permits.release(num_steps)

    def release(self) -> None:
        self._is_free = True
        self._permits.release()

    async def step_until(self, awaitable):
        """Await, while one held step after the other is let go: slowly enough for whatever else is on its way."""
        waiting = asyncio.ensure_future(awaitable)
        while not waiting.done():
            self.allow(1)
            await asyncio.wait((waiting,), timeout=PACE_S)
        return await waiting

    def wake_on_completion(self, wake) -> None:
        self._wake = wake

    def complete(self, *copy_ids: int) -> None:
        """These copies end now; they are told of when someone asks."""
        self._completed += copy_ids
        for _ in copy_ids:
            self._wake()

    def take_completed(self) -> tuple[int, ...]:
        if self.copy_errors:
            raise self.copy_errors.pop(0)
        taken, self._completed = tuple(self._completed), []
        return taken

    def take_copy_timings(self) -> tuple:
        return ()

    def execute(self, plan: StepPlan) -> StepOutput:
        if not self._is_free:
            assert self._permits.acquire(timeout=30), "the test forgot to release the runner"
        self.started_copies += [copy.copy_id for copy in plan.copies]
        if not self.holds_copies:
            self.complete(*(copy.copy_id for copy in plan.copies))
        time.sleep(self._step_s)
        self.num_steps += 1
        if self.errors:
            raise self.errors.pop(0)
        for start in plan.started:
            self._num_prompt_tokens[start.row] = start.num_prompt_tokens
        chunks = zip(plan.rows, plan.starts, plan.num_tokens, plan.samples, strict=True)
        return StepOutput(
            plan.step_id,
            {row: (self._token(row, start + num_tokens),) for row, start, num_tokens, samples in chunks if samples},
            completed_copies=self.take_completed(),
        )

    def _token(self, row: int, position: int) -> int:
        return FIRST_TOKEN + position - self._num_prompt_tokens[row]
