"""A device that has no memory left in the middle of a step, wherever in it: nothing that is said changes."""

import random
from dataclasses import replace

import pytest
import torch

from engine.runner import model_runner
from engine.runner.model_runner import ModelRunner
from engine.runner.proposers import NgramDrafts
from tests.runner.test_guided_drafts import FIELDS, Ended, alone, guided_request, held  # noqa: F401  a fixture
from tests.runner.test_scheduled_swap import MODES


def too_much() -> None:
    """What torch's allocator of main memory says."""
    torch.empty(1 << 60, dtype=torch.uint8)


def too_much_on_a_card() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class Losing(Ended):
    """Now and then finds no memory: behind the model, the draw, what counts and follows tokens, or behind proposals.
    Never twice in a row for anybody."""

    def __init__(self, model, slice_steps, rng: random.Random, **fields) -> None:
        super().__init__(model, slice_steps, **fields)
        self.num_lost, self._rng, self._may_fail = 0, rng, True
        runner = self.runner
        runner._path.logits = self.scarce(runner._path.logits)
        runner._draw = self.scarce(runner._draw)
        runner._penalties.record = self.scarce(runner._penalties.record)
        runner._masks.record = self.scarce(runner._masks.record)
        runner._guided.propose = self.scarce(runner._guided.propose)

    def scarce(self, call):
        def call_and_fail(*args):
            result = call(*args)
            if self._may_fail and self._rng.random() < 0.03:
                self._rng.choice([too_much, too_much_on_a_card])()
            return result

        return call_and_fail

    def compute(self, plan):
        lost = self.scheduler._requeues._num_computed
        self._may_fail = all(seq.num_computed_tokens > lost.get(seq, -1) for seq in self.scheduler.open_sequences)
        try:
            return super().compute(plan)
        except MemoryError:
            self.num_lost += 1
            return self.scheduler.requeue(self.now)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 24))])
def test_outputs_are_the_same_however_many_steps_are_lost(held, seed):  # noqa: F811  the fixture
    rng = random.Random(seed)
    requests = [guided_request(held, 500 * seed + index) for index in range(8)]
    expected = alone(held, requests)
    fields = FIELDS | rng.choice(list(MODES.values())) | {"enable_prefix_caching": rng.random() < 0.5}
    served = Losing(held.model, rng.choice([2, 1000]), rng, drafts=NgramDrafts(1), **fields)
    for request in requests:
        served.add(request)
    served.run()
    assert served.num_lost > 0
    assert served.outputs == expected.outputs
    assert served.ends == expected.ends


@pytest.mark.parametrize("fail", [too_much, too_much_on_a_card])
def test_memory_that_a_step_does_not_find_is_told_as_such(held, monkeypatch, fail):  # noqa: F811  the fixture
    served = Ended(held.model, 1000)
    served.add(replace(guided_request(held, 4), max_output_tokens=5))
    plan = served.scheduler.plan(0)
    with monkeypatch.context() as patch:
        patch.setattr(model_runner, "finite_rows", lambda _logits: fail())
        with pytest.raises(MemoryError):
            served.runner.execute(plan)
    served._take(served.scheduler.requeue(0))
    served.run()
    assert len(served.outputs["r4"]) > 0


def test_what_a_lost_step_held_is_free_before_the_next(held, monkeypatch):  # noqa: F811  the fixture
    """The error of a step has frames, and these have tensors."""
    freed = []

    class Held:
        def __del__(self):
            freed.append(True)

    def fail(_logits):
        _kept = Held()
        too_much()

    served = Ended(held.model, 1000)
    served.add(guided_request(held, 4))
    plan = served.scheduler.plan(0)
    monkeypatch.setattr(model_runner, "finite_rows", fail)
    with pytest.raises(MemoryError) as caught:
        served.runner.execute(plan)
    assert freed == [True]
    assert caught.value.__cause__ is not None


def test_other_errors_of_a_step_stay_what_they_are(held, monkeypatch):  # noqa: F811  the fixture
    served = Ended(held.model, 1000)
    served.add(guided_request(held, 4))
    plan = served.scheduler.plan(0)

    def fail(_logits):
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(model_runner, "finite_rows", fail)
    with pytest.raises(RuntimeError, match="the device is gone"):
        served.runner.execute(plan)
    assert isinstance(served.runner, ModelRunner)
