"""A product by itself, for what is no part of a layer, such as the head."""

import numpy as np
import torch
from torch import Tensor

from engine.kernels.cpu.compiled import elements
from engine.kernels.cpu.panels import Panels
from engine.kernels.cpu.products import product_kernel, rows_code
from engine.kernels.cpu.shared_work import counters, run_together


def multiply(x: Tensor, panels: Panels, dtype: torch.dtype | None = None) -> Tensor:
    """x [T, num_inputs], float32 or bfloat16, times the weight's transpose, plus the bias: [T, num_columns] in `dtype`,
    or in x's."""
    product = torch.empty((len(x), panels.num_columns), dtype=dtype or x.dtype)
    rows = np.zeros((len(x), panels.num_words), np.int32)
    scales = np.ones(len(x), np.float32)
    addresses = tuple(panels.addresses().tolist())
    run_together(
        torch.get_num_threads(),
        product_kernel(panels.precision.value),
        counters(2),
        elements(x.contiguous()),
        rows,
        scales,
        (panels.num_panels, panels.num_words, addresses, rows_code(panels.precision.value)),
        elements(product),
    )
    return product
