"""The largest product of each row, found without keeping any, against the products."""

import pytest
import torch

from engine.kernels.cpu.linear import largest_products, multiply
from engine.kernels.cpu.panels import Precision, pack_panels
from engine.kernels.linear import pack
from engine.kernels.ops import largest_products as largest_by_device

SIZES = [1, 31, 32, 33, 96, 1000, 3000]  # columns: some of the last pair, pairs, and items of several pairs
NUM_ROWS = [1, 2, 7, 13, 40]


def first_of_the_largest(logits):
    return (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)


def panels_of(biases, precision):
    """A weight whose products with rows of zeros are `biases` [N], to the bit."""
    torch.manual_seed(len(biases))
    return pack_panels(torch.randn(len(biases), 22), precision, biases)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("precision", Precision)
def test_the_first_of_the_largest_products_is_found(precision, num_threads, torch_threads):
    torch_threads(num_threads)
    for size in SIZES:
        torch.manual_seed(size)
        panels = pack_panels(torch.randn(size, 33), precision, torch.randn(size))
        for num_rows in NUM_ROWS:
            for dtype in (torch.float32, torch.bfloat16):
                x = torch.randn(num_rows, 33).to(dtype)
                columns, are_finite = largest_products(x, panels)
                logits = multiply(x, panels, torch.float32)
                assert torch.equal(columns, first_of_the_largest(logits))
                assert are_finite.all()


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("places", [(0, 1), (5, 40), (31, 32, 2999), (1500, 1532, 2990), (2976, 2999), range(3000)])
def test_of_equal_products_the_first_is_found_wherever_the_others_are(precision, places):
    biases = torch.full((3000,), -2.0)
    biases[list(places)] = -1.0  # what pads a pair, zeros, would be larger
    columns, are_finite = largest_products(torch.zeros(14, 22), panels_of(biases, precision))
    assert columns.tolist() == [min(places)] * 14
    assert are_finite.all()


@pytest.mark.parametrize("size", [40, 3001])
@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_product_that_is_not_finite_is_told_wherever_it_is(precision, bad, size):
    for place in (0, 17, 32, size - 1):
        biases = torch.linspace(-3, -1, size)
        biases[place] = bad
        columns, are_finite = largest_products(torch.zeros(5, 22), panels_of(biases, precision))
        assert not are_finite.any()
        assert all(0 <= column < size for column in columns.tolist())


@pytest.mark.parametrize("precision", Precision)
def test_a_row_that_is_not_finite_leaves_the_others_as_they_are(precision):
    torch.manual_seed(0)
    x, panels = torch.randn(14, 33), pack_panels(torch.randn(500, 33), precision)
    undisturbed, _ = largest_products(x, panels)
    x[1, 7], x[12, 0] = torch.nan, torch.inf
    columns, are_finite = largest_products(x, panels)
    kept = [row for row in range(14) if row not in (1, 12)]
    assert are_finite.tolist() == [row in kept for row in range(14)]
    assert torch.equal(columns[kept], undisturbed[kept])
    assert all(0 <= column < 500 for column in columns.tolist())


def test_the_largest_and_the_least_finite_numbers_are_finite():
    biases = torch.tensor([torch.finfo(torch.float32).min, -0.0, 0.0, torch.finfo(torch.float32).max])
    columns, are_finite = largest_products(torch.zeros(1, 22), panels_of(biases, Precision.FLOAT32))
    assert columns.tolist() == [3]
    assert are_finite.tolist() == [True]


def test_weights_that_are_in_no_panels_are_judged_by_their_products():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(6, 33), torch.randn(70, 33), torch.randn(70)
    x[2, 5] = torch.nan
    plain = largest_by_device(x, weight, bias)
    packed = largest_by_device(x, pack(weight, bias), None)
    kept = [0, 1, 3, 4, 5]
    assert torch.equal(plain[0][kept], packed[0][kept])
    assert plain[1].tolist() == packed[1].tolist() == [row != 2 for row in range(6)]
