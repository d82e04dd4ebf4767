"""Prompts of 7,000 tokens beside short outputs: these get on in every step; and where steps are batch-invariant, what
anybody says is what it says alone."""

import itertools
import random
from collections import defaultdict

import pytest

from engine.core.config import SchedulerConfig
from engine.core.events import Finished, TokensEmitted
from engine.core.scheduler import Scheduler
from engine.core.types import FinishReason, PathNode, Request, SamplingParams
from engine.model.loader import load_model
from engine.plugins import load_preemption_policy, load_scheduling_policy
from engine.runner.model_runner import ModelRunner
from tests.model import tiny_llama

NUM_DECODERS, LONG = 8, 7000
BATCH = 256


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    module = tiny_llama.make_model(max_position_embeddings=8192)
    folder = tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", module)
    return load_model(folder, dtype="bfloat16", device="cpu")


def request(name: str, tenant: str, num_prompt: int, num_output: int) -> Request:
    rng = random.Random(name)
    return Request(
        generation_id=name,
        path=(PathNode(tenant, 1.0),),
        prompt_token_ids=tuple(rng.randrange(2, 290) for _ in range(num_prompt)),
        max_output_tokens=num_output,
        arrived_at=0,
        sampling=SamplingParams(seed=7) if num_output % 2 else SamplingParams(temperature=0.0),
    )


class Steps:
    """An engine of its own; notes in which steps each request got tokens, and which these were."""

    def __init__(self, model, policy: str) -> None:
        config = SchedulerConfig(
            max_num_seqs=16,
            max_num_batched_tokens=BATCH,
            block_size=16,
            num_device_blocks=1100,
            max_model_len=8000,
        )
        self._runner = ModelRunner(model, config, batch_invariant=True)
        self.scheduler = Scheduler(
            config, load_scheduling_policy(policy, {}), load_preemption_policy("over_served", {})
        )
        self.outputs: defaultdict[str, list[int]] = defaultdict(list)
        self.steps: defaultdict[str, list[int]] = defaultdict(list)
        self.num_steps = 0

    def add(self, *requests: Request) -> None:
        for each in requests:
            self.scheduler.add(each, self.num_steps)

    def step(self) -> None:
        self.num_steps += 1
        plan = self.scheduler.plan(self.num_steps * 1_000_000)
        assert plan is not None
        for event in self.scheduler.commit(self._runner.execute(plan), self.num_steps * 1_000_000):
            if isinstance(event, TokensEmitted):
                self.outputs[event.key.generation_id] += event.token_ids
                self.steps[event.key.generation_id].append(self.num_steps)
            elif isinstance(event, Finished):
                assert event.reason is FinishReason.LENGTH

    def run(self) -> None:
        while self.scheduler.has_unfinished:
            self.step()


@pytest.mark.parametrize(
    ("policy", "num_long"),
    [("fair", 1), *(pytest.param(policy, 2, marks=pytest.mark.slow) for policy in ("fair", "fcfs"))],
)
def test_decoders_get_on_in_every_step_beside_long_prompts_and_say_what_they_say_alone(model, policy, num_long):
    decoders = [request(f"d{index}", "chat", 20 + index, 70 + index) for index in range(NUM_DECODERS)]
    prompts = [request(f"p{index}", "docs", LONG, 3 + index) for index in range(num_long)]
    served = Steps(model, policy)
    served.add(*decoders)
    while len(served.outputs) < NUM_DECODERS:
        served.step()
    served.add(*prompts)
    served.run()

    num_beside = max(served.steps[prompt.generation_id][0] for prompt in prompts)
    assert num_beside > num_long * LONG / BATCH, "the prompts were not long"
    for decoder in decoders:
        steps = served.steps[decoder.generation_id]
        gaps = [after - before for before, after in itertools.pairwise(steps)]
        assert max(gaps) == 1, (decoder.generation_id, gaps)
    for each in (*decoders, *prompts):
        alone = Steps(model, policy)
        alone.add(each)
        alone.run()
        assert served.outputs[each.generation_id] == alone.outputs[each.generation_id]
