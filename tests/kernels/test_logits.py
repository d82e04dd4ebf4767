"""What every step asks of its logits, against torch."""

import pytest
import torch

from engine.kernels.cpu.logits import finite_rows, likeliest


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (1, 63), (3, 64), (7, 65), (40, 1000)])
def test_the_first_of_the_largest_is_the_likeliest(num_rows, size, num_threads, torch_threads):
    torch_threads(num_threads)
    torch.manual_seed(size)
    logits = torch.randn(num_rows, size)
    assert torch.equal(likeliest(logits), logits.argmax(-1))
    for row in range(num_rows):  # ties, anywhere
        logits[row, torch.randperm(size)[:3]] = 9.0
    logits[-1] = -1e30
    assert torch.equal(likeliest(logits), (logits == logits.amax(-1, keepdim=True)).int().argmax(-1))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_number_that_is_not_finite_makes_its_row_so_and_no_other(bad):
    logits = torch.randn(6, 100)
    logits[0, 0] = logits[2, 99] = logits[5, 50] = bad
    logits[1, 3], logits[3, 4] = torch.finfo(torch.float32).max, torch.finfo(torch.float32).min
    assert finite_rows(logits).tolist() == [False, True, False, True, True, False]
    assert all(0 <= token_id < 100 for token_id in likeliest(logits).tolist())
