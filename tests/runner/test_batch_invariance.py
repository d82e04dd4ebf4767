"""With batch-invariant steps, a request's logits and tokens have the bits that it gets alone, whatever is beside it."""

import random
from contextlib import nullcontext

import pytest
import torch

from engine.core.config import SchedulerConfig
from engine.core.types import SamplingParams
from engine.errors import SettingsError
from engine.model.loader import load_model
from engine.runner.model_runner import ModelRunner
from engine.server.backend import check_batch_invariant
from engine.settings import read_settings
from tests.model import tiny_llama
from tests.runner.driver import GREEDY

NUM_ROWS = 6
NUM_TOKENS = 10
MODELS = {
    "llama, float32": ("llama", {}, "float32", None),
    "llama, bfloat16": ("llama", {}, "bfloat16", None),
    "llama, int8": ("llama", {}, "float32", "int8"),
    "qwen3, windows": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
        "bfloat16",
        None,
    ),
}


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS.keys())
def model(request, tmp_path_factory):
    family, settings, dtype, quantization = request.param
    folder = tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model(family, **settings))
    return load_model(folder, dtype=dtype, device="cpu", quantization=quantization)


def random_request(rng):
    prompt = [rng.randrange(2, tiny_llama.VOCABULARY_SIZE) for _ in range(rng.randrange(1, 70))]
    sampling = rng.choice(
        [
            GREEDY,
            SamplingParams(seed=rng.randrange(1000), temperature=1.5),
            SamplingParams(seed=rng.randrange(1000), top_p=0.8, presence_penalty=0.5),
            SamplingParams(seed=rng.randrange(1000), top_k=rng.choice([3, 290]), min_p=0.01),
        ]
    )
    return prompt, sampling


class Traffic:
    """Requests that come and go at random, in chunks of random size, and lose their blocks at random."""

    def __init__(self, driver, rng):
        self.driver, self.rng = driver, rng
        self.ended = []
        self._logits_by_row = {}

    def play(self, num_steps):
        for _ in range(num_steps):
            self._maybe_add()
            self._step()
            self._maybe_preempt()

    def _maybe_add(self):
        free = [row for row in range(NUM_ROWS) if row not in self.driver.rows]
        if free and self.rng.random() < 0.5:
            row = self.rng.choice(free)
            self.driver.add(row, *random_request(self.rng))
            self._logits_by_row[row] = []

    def _step(self):
        rows = self.rng.sample(sorted(self.driver.rows), len(self.driver.rows))
        running = sorted(rows, key=lambda row: self.driver.rows[row].num_pending > 1)
        pending = {row: self.driver.rows[row].num_pending for row in running}
        chunks = {row: self.rng.randint(1, count) for row, count in pending.items() if self.rng.random() < 0.8}
        if not chunks:
            return
        output = self.driver.step(chunks)
        assert not output.errors
        for row, logits in zip(output.accepted, self.driver.logits, strict=True):
            self._logits_by_row[row].append(logits)
            if len(self.driver.rows[row].output) == NUM_TOKENS:
                self.ended.append((self.driver.remove(row), torch.stack(self._logits_by_row[row])))

    def _maybe_preempt(self):
        if self.driver.rows and self.rng.random() < 0.15:
            self.driver.preempt(self.rng.choice(sorted(self.driver.rows)))


@pytest.mark.parametrize(("seed", "num_threads"), [(0, 1), (1, 1), (2, 2)])
def test_neighbours_chunks_and_preemptions_leave_every_bit_as_it_is(
    model, make_driver, seed, num_threads, torch_threads
):
    torch_threads(num_threads)
    rng = random.Random(seed)
    traffic = Traffic(make_driver(model, num_rows=NUM_ROWS, batch_invariant=True), rng)
    traffic.play(70)
    assert len(traffic.ended) > 5
    alone = make_driver(model, batch_invariant=True)
    for state, logits in traffic.ended:
        prompt = state.token_ids[: state.num_prompt_tokens]
        row = alone.add(0, prompt, state.sampling)
        alone.prefill([0], chunk_size=len(prompt))
        expected = torch.cat([alone.logits, *alone.decode([0], NUM_TOKENS - 1)])
        assert row.output == state.output
        assert torch.equal(logits, expected)
        alone.remove(0)


@pytest.mark.parametrize("model", [MODELS["llama, bfloat16"]], indirect=True)
@pytest.mark.parametrize("batch_invariant", [True, False])
def test_keys_are_packed_for_a_long_chunk_only_without_it(model, make_driver, batch_invariant):
    """Packed keys give other bits, and how long a chunk is, its neighbours decide."""
    plans = []
    hook = model.module.model.register_forward_pre_hook(lambda _, inputs: plans.append(inputs[0].attention))
    driver = make_driver(model, batch_invariant=batch_invariant)
    driver.add(0, list(range(2, 62)))
    driver.prefill([0], chunk_size=60)
    hook.remove()
    assert [len(plan.groups) > 0 for plan in plans] == [not batch_invariant]


@pytest.mark.parametrize(
    ("device", "has_cuda", "refused"), [("auto", True, True), ("cpu", True, False), ("auto", False, False)]
)
def test_setting_is_refused_before_a_model_is_loaded_for_a_gpu(device, has_cuda, refused):
    settings = read_settings({"listen": "unix:/tmp/e.sock", "batch_invariant": True, "device": device})
    complaint = pytest.raises(SettingsError, match="batch_invariant is computed on a CPU only: add device cpu")
    with complaint if refused else nullcontext():
        check_batch_invariant(settings, has_cuda=has_cuda)


def test_devices_that_cannot_do_it_say_so(model):
    class Elsewhere:
        config, dtype, device = model.config, model.dtype, torch.device("meta")
        module, info = model.module, model.info

    with pytest.raises(ValueError, match="batch-invariant steps are computed on a CPU only, not on meta"):
        ModelRunner(Elsewhere(), SchedulerConfig(4, 64, 16, 8, 512), batch_invariant=True)
