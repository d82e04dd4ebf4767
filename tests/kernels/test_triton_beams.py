"""Searches on the Triton kernels, interpreted: forks, copied blocks and recorded decodes find what a CPU finds."""

import pytest
import torch

from tests.kernels.interpreted import attention  # noqa: F401  isort: skip  # before what imports Triton
from engine.core.types import BeamSearchParams, PathNode, Request, SamplingParams
from engine.runner import step_path
from tests.device.models import TINY, make_model
from tests.runner.test_searches import Searched
from tests.torch_threads import one_thread  # noqa: F401  a fixture

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def search(model, *, prepares: bool) -> list[tuple[tuple[int, ...], float]]:
    served = Searched(model, 1_000, num_device_blocks=40, max_num_seqs=4)
    if prepares:
        served.runner._path.prepare()
    served.add(
        Request(
            generation_id="g",
            path=(PathNode("a", 1.0),),
            prompt_token_ids=(3, 1, 4, 1, 5),
            max_output_tokens=4,
            arrived_at=0,
            sampling=SamplingParams(temperature=0.0),
            beam_search=BeamSearchParams(3, 3),
        )
    )
    served.run()
    return [(each.token_ids, each.score) for each in served.found["g"]]


@pytest.mark.slow
@pytest.mark.parametrize("is_recorded", [False, True])
def test_searches_of_the_kernels_find_what_searches_on_a_processor_find(is_recorded, monkeypatch):
    model = make_model(TINY, torch.device("cpu"), torch.float32).loaded
    expected = search(model, prepares=False)
    monkeypatch.setattr(step_path, "runs_on", lambda device_type: True)
    found = search(model, prepares=is_recorded)
    assert [token_ids for token_ids, _ in found] == [token_ids for token_ids, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-4)
