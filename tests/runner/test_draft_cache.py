"""What a draft model keeps of a row holds for the tokens that stand there, however its last guesses came out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.core.config import SchedulerConfig
from engine.core.plan import RowStart, StepPlan
from engine.core.types import SamplingParams, SequenceKey
from engine.grammars.source import GrammarKind
from engine.model.info import LoadedModel
from engine.runner.draft_model import DraftModel
from engine.runner.model_runner import ModelRunner
from engine.runner.row_table import RowTable
from engine.runner.token_masks import TokenMasks
from tests.model import tiny_llama
from tests.runner.test_constrained_outputs import Held
from tests.runner.test_guided_drafts import (  # noqa: F401  two of them are fixtures
    ALONE,
    FIELDS,
    Ended,
    guided_request,
    held,
    smaller_model,
)
from tests.runner.test_scheduled_swap import MODES, make_request

LONGEST = 100
FORCING = "([a-c]hello world){2,6}!"  # a choice, and text that can be written in many ways


class Fresh:
    """What a model says behind tokens that it computes from the first one on."""

    def __init__(self, model: LoadedModel) -> None:
        fields = {"max_num_batched_tokens": LONGEST, "max_model_len": LONGEST, "num_device_blocks": LONGEST // 4}
        self._runner = ModelRunner(model, SchedulerConfig(max_num_seqs=1, block_size=4, **fields))

    def logits(self, token_ids: list[int]) -> Tensor:
        blocks = tuple(range(-(-len(token_ids) // 4)))
        start = RowStart(0, SequenceKey("g", 0), token_ids, len(token_ids), blocks, SamplingParams())
        plan = StepPlan(0, (), (start,), (), (0,), (0,), (len(token_ids),), (True,))
        self._runner._rows.apply(plan)
        return self._runner._path.logits(self._runner._path.build(plan))[0]


class Checked(DraftModel):
    """Holds what it draws from against what it would have been without anything kept."""

    def __init__(self, model: LoadedModel, config: SchedulerConfig, rows: RowTable, masks: TokenMasks) -> None:
        super().__init__(model, config, rows, masks)
        self._fresh = Fresh(model)
        self.num_checked = 0

    def _draw(self, logits, rows, at):
        for row, end, found in zip(rows.tolist(), at.tolist(), logits, strict=True):
            expected = self._fresh.logits(self._rows.token_ids[row, :end].tolist())
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
            self.num_checked += 1
        return super()._draw(logits, rows, at)


def checked_row(model: LoadedModel) -> tuple[RowTable, Checked]:
    """A draft model with one row of two tokens, and the table that it stands in."""
    config = SchedulerConfig(
        max_num_seqs=1,
        block_size=4,
        num_device_blocks=16,
        max_num_batched_tokens=64,
        max_model_len=64,
        num_draft_tokens=6,
    )
    rows, masks = RowTable(config), TokenMasks(1, tiny_llama.VOCABULARY_SIZE)
    start = RowStart(0, SequenceKey("g", 0), (3, 4), 2, tuple(range(8)), SamplingParams(temperature=0.0))
    rows.apply(StepPlan(0, (), (start,), (), (), (), (), ()))
    draft = Checked(model, config, rows, masks)
    draft.start((start,))
    return rows, draft


def propose(draft: Checked, num_known: int, num_forced: int, limit: int) -> int:
    columns = ([0], [num_known + num_forced], [limit - num_forced], [num_known])
    with torch.inference_mode():
        return int(draft.propose(*(np.array(column) for column in columns))[0])


def put(rows: RowTable, start: int, *token_ids: int) -> None:
    rows.token_ids[0, start : start + len(token_ids)] = token_ids


@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_forced_tokens_that_come_out_otherwise_are_computed_again(smaller_model, num_right):  # noqa: F811  the fixture
    """Three are forced and as many drafted; some are right, one comes out otherwise, and three are forced again."""
    rows, draft = checked_row(smaller_model)
    put(rows, 2, 11, 12, 13)
    assert propose(draft, 2, 3, 6) == 3
    put(rows, 2 + num_right, 99, 21, 22, 23)
    assert propose(draft, 3 + num_right, 3, 6) == 3
    assert draft.num_checked == 6
    assert draft.num_computed[0] == 3 + num_right + 5  # all but the last draft


def test_forced_tokens_that_came_out_as_forced_are_kept(smaller_model):  # noqa: F811  the fixture
    rows, draft = checked_row(smaller_model)
    put(rows, 2, 11, 12, 13)
    propose(draft, 2, 3, 6)
    drafts = rows.token_ids[0, 5:8].tolist()
    computed = []
    forward = draft._forward
    draft._forward = lambda rows, starts, *rest: computed.append(int(starts[0])) or forward(rows, starts, *rest)
    put(rows, 5, *drafts[:2], 99)  # five of six were right
    propose(draft, 8, 0, 1)
    assert computed == [7]


def test_row_that_nobody_asked_about_while_all_was_forced_is_computed_from_where_it_differs(
    smaller_model,  # noqa: F811  the fixture
):
    rows, draft = checked_row(smaller_model)
    put(rows, 2, 11, 12)
    propose(draft, 2, 2, 6)
    put(rows, 2, 11, *range(50, 62))  # the second one came out otherwise, and much is known by now
    propose(draft, 15, 0, 6)
    assert draft.num_checked == 4 + 6


def forcing_request(held: Held, index: int):  # noqa: F811  the fixture
    sampling = SamplingParams(seed=index, constraint=held.constraint(GrammarKind.REGEX, FORCING))
    return replace(make_request(index), prompt_token_ids=(5, 6 + index), max_output_tokens=60, sampling=sampling)


@pytest.mark.parametrize("slice_steps", [3, ALONE])
@pytest.mark.parametrize("mode", [MODES["recompute"], MODES["partial swap"]], ids=["recompute", "partial swap"])
def test_drafts_behind_forced_tokens_are_those_of_a_model_that_begins_anew(
    held,  # noqa: F811  the fixture
    smaller_model,  # noqa: F811  the fixture
    mode,
    slice_steps,
):
    served = Ended(held.model, slice_steps, **FIELDS, **mode)
    runner = served.runner
    draft = runner._proposer = Checked(smaller_model, served.scheduler.config, runner._rows, runner._masks)
    for index in range(4):
        served.add(forcing_request(held, index))
        served.add(guided_request(held, 10 + index))
    served.run()
    assert draft.num_checked > 20
