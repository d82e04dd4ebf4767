"""Weights as products read them: in panels of sixteen columns, each column's inputs in words of 32 bits.

8-bit weights are symmetric, a scale per output column; what they are multiplied by is rounded to 8 bits as it comes,
a scale per row. Source: Dettmers et al. 2022 (LLM.int8()), its vector-wise quantization, without the outliers' path.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from engine.kernels.cpu.tile_code import LANES, ZERO_POINT

LARGEST = 127.0
"""Of an 8-bit weight or input, so that there is a negative of each."""


class Precision(Enum):
    """How many numbers a word of 32 bits holds."""

    FLOAT32 = 1
    BFLOAT16 = 2
    INT8 = 4


@dataclass(frozen=True, slots=True)
class Panels:
    """A weight [num_columns, num_inputs], columns padded to pairs of panels, inputs to whole words, with zeros.

    words    [panels, words of an input row, 16] int32
    scales   [panels * 16] float32, of 8-bit columns, else 1
    offsets  [panels * 16] int32, what the inputs' zero point adds to a column's sum, negative; else 0
    biases   [panels * 16] float32
    """

    precision: Precision
    num_columns: int
    num_inputs: int
    words: Tensor
    scales: Tensor
    offsets: Tensor
    biases: Tensor

    @property
    def num_words(self) -> int:
        return self.words.shape[1]

    @property
    def num_panels(self) -> int:
        return self.words.shape[0]

    def addresses(self) -> NDArray[np.int64]:
        """[4]: of words, scales, offsets and biases. Good while this lives."""
        return np.array([each.data_ptr() for each in (self.words, self.scales, self.offsets, self.biases)], np.int64)


def pack_panels(weight: Tensor, precision: Precision, bias: Tensor | None = None) -> Panels:
    """`weight` [columns, inputs], of any float dtype, on the CPU."""
    num_columns, num_inputs = weight.shape
    per_word = precision.value
    num_padded = -num_columns % (2 * LANES)
    missing = (0, -num_inputs % per_word, 0, num_padded)
    padded = pad(weight, missing) if any(missing) else weight  # it would be copied
    scales = torch.ones(len(padded), dtype=torch.float32)
    offsets = torch.zeros(len(padded), dtype=torch.int32)
    if precision is Precision.INT8:
        padded, scales = quantized(padded.float())
        offsets = -ZERO_POINT * padded.sum(-1, dtype=torch.int32)
    stored = padded.to({1: torch.float32, 2: torch.bfloat16, 4: torch.int8}[per_word])
    by_column = stored.contiguous().view(torch.int32)  # whole words move: what they hold stays together
    words = by_column.view(-1, LANES, by_column.shape[1]).transpose(1, 2).contiguous()
    biases = torch.zeros(len(padded)) if bias is None else pad(bias.float(), (0, num_padded))
    return Panels(precision, num_columns, num_inputs, words, scales, offsets, biases)


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 [N, K], scales [N] float32): weight [N, K] float32 is about their product, and 0 exactly 0."""
    scales = weight.abs().amax(-1) / LARGEST
    divisors = scales.where(scales > 0, 1.0)
    return (weight / divisors[:, None]).round_().to(torch.int8), scales
