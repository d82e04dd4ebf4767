"""Matrix products with weights that are packed once: into panels on a processor, left as they are elsewhere."""

import torch
from torch import Tensor
from torch.nn.functional import linear as plain_linear

from engine.kernels.cpu.linear import multiply
from engine.kernels.cpu.panels import Panels, Precision, pack_panels

INT8 = "int8"
QUANTIZATIONS = (INT8,)
"""Of weights, beside none."""

_PRECISIONS = {torch.float32: Precision.FLOAT32, torch.bfloat16: Precision.BFLOAT16}

Packed = Panels | Tensor
"""What `linear` reads."""


def pack(weight: Tensor, bias: Tensor | None = None, quantization: str | None = None) -> Packed:
    """`weight` [out, in] and `bias` [out] in the form that `linear` reads fastest: panels on a processor, else the
    weight itself, without the bias. Raises ValueError for a quantization that the device has no product for."""
    if weight.device.type == "cpu" and weight.dtype in _PRECISIONS:
        precision = Precision.INT8 if quantization == INT8 else _PRECISIONS[weight.dtype]
        return pack_panels(weight, precision, bias)
    if quantization is not None:
        raise ValueError(f"quantization {quantization} is computed on a processor only, not on {weight.device.type}")
    return weight


def linear(x: Tensor, packed: Packed, bias: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """x [T, in] times the transpose of the weight that `pack` was given, plus the bias: [T, out] in `dtype`, or in
    x's."""
    if isinstance(packed, Panels):
        return multiply(x, packed, dtype)
    return plain_linear(x, packed, bias).to(dtype or x.dtype)
