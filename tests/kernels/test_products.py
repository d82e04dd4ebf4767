"""Products with packed weights, in each precision, over odd sizes, against float64."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.kernels.cpu.linear import multiply
from engine.kernels.cpu.panels import Precision, pack_panels, quantized
from engine.kernels.linear import linear, pack

SIZES = [(48, 80), (33, 22), (7, 1), (64, 32), (65, 33), (130, 97)]
NUM_ROWS = [1, 2, 3, 5, 8, 11, 12, 13, 40]
# Of a product of numbers around 1, over the root of its length. 8 bits: half a step of 1/127 of about 3, on both sides.
TOLERANCES = {Precision.FLOAT32: 1e-5, Precision.BFLOAT16: 0.02, Precision.INT8: 0.06}


def operands(num_rows, num_inputs, num_columns, dtype=torch.float32):
    torch.manual_seed(num_rows * num_inputs + num_columns)
    x, weight = torch.randn(num_rows, num_inputs), torch.randn(num_columns, num_inputs)
    return x.to(dtype), weight.to(dtype), torch.randn(num_columns)


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_product_is_the_exact_one_within_its_precision(sizes, precision):
    for num_rows in NUM_ROWS:
        x, weight, bias = operands(num_rows, *sizes)
        exact = x.double() @ weight.double().T + bias
        product = multiply(x, pack_panels(weight, precision, bias))
        torch.testing.assert_close(product.double(), exact, atol=TOLERANCES[precision] * sizes[0] ** 0.5, rtol=0)


@pytest.mark.parametrize("precision", Precision)
def test_a_rows_product_has_the_same_bits_whoever_stands_beside_it(precision, torch_threads):
    x, weight, bias = operands(40, 65, 97)
    panels = pack_panels(weight, precision, bias)
    together = multiply(x, panels)
    for begin, end in ((0, 1), (39, 40), *((3, 3 + num_rows) for num_rows in range(1, 26))):
        assert torch.equal(multiply(x[begin:end], panels), together[begin:end])
    torch_threads(2)
    assert torch.equal(multiply(x, panels), together)


@pytest.mark.parametrize("precision", Precision)
def test_a_row_that_is_not_finite_leaves_the_others_as_they_are(precision):
    x, weight, _ = operands(14, 33, 40)
    panels = pack_panels(weight, precision)
    undisturbed = multiply(x, panels)
    x[1, 7], x[12, 0] = torch.nan, torch.inf
    product = multiply(x, panels)
    kept = [row for row in range(14) if row not in (1, 12)]
    assert torch.equal(product[kept], undisturbed[kept])
    assert not product[[1, 12]].isfinite().any()


def test_rows_and_columns_of_zeros_stay_zero_in_8_bits():
    x, weight, _ = operands(3, 33, 40)
    x[1], weight[5] = 0, 0
    product = multiply(x, pack_panels(weight, Precision.INT8))
    assert (product[1] == 0).all()
    assert (product[:, 5] == 0).all()


def test_8_bit_integers_are_multiplied_exactly():
    """Scales of powers of two leave nothing to round: 127 is in each row and column."""
    torch.manual_seed(0)
    x, weight = (torch.randint(-127, 128, size).float() for size in ((13, 70), (45, 70)))
    x[:, 0], weight[:, 0] = 127, 127
    assert torch.equal(multiply(x, pack_panels(weight, Precision.INT8)), x @ weight.T)


def test_quantization_is_symmetric_and_off_by_half_a_step_at_most():
    weight = torch.randn(50, 64)
    rounded, scales = quantized(weight)
    assert rounded.abs().amax(-1).eq(127).all()
    assert ((rounded * scales[:, None] - weight).abs() <= scales[:, None] * 0.5001).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_packed_is_multiplied_in_the_dtype_of_its_rows(dtype):
    x, weight, bias = operands(5, 64, 33, dtype)
    for quantization in (None, "int8"):
        product = linear(x, pack(weight, bias, quantization))
        assert product.dtype == dtype
        exact = x.double() @ weight.double().T + bias
        torch.testing.assert_close(product.double(), exact, atol=0.6, rtol=0.01)


def test_no_device_but_a_processor_multiplies_in_8_bits():
    with pytest.raises(ValueError, match="int8 is computed on a processor only"):
        pack(torch.empty(4, 4, device="meta"), None, "int8")


@pytest.mark.slow
def test_a_processor_without_the_instructions_computes_the_same():
    """The whole of this file and of the one about judged products, compiled for one that has AVX2 and nothing
    beyond."""
    environment = os.environ | {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma"}
    files = [__file__, str(Path(__file__).with_name("test_judged_products.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    result = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
