"""Matrix products with weights that are packed once.

On a CPU oneDNN's packed layout is 1.3 to 2 times as fast as the plain one, at every number of rows and in both
dtypes, and the result is the same product. The packing does not depend on the number of rows.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear as plain_linear

_ROWS_HINT = 32  # what oneDNN is told to pack for; one packing was as fast as the best for 1 to 256 rows


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN has a packed product for this device and dtype."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def pack(weight: Tensor) -> Tensor:
    """`weight` [out, in] in the layout that `linear` reads fastest. Opaque where `can_pack`, else the weight itself."""
    if not can_pack(weight):
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
    return packed


def linear(x: Tensor, packed: Tensor) -> Tensor:
    """x [T, in] times the transpose of the weight that `pack` returned: [T, out] in x's dtype."""
    if not packed.is_mkldnn:
        return plain_linear(x, packed)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return product
