"""Blocks of GGUF's most frequent forms, against the package that defines them, to the bit."""

import gguf
import numpy as np
import pytest

from engine.kernels.cpu.quantized_blocks import DECODED, NUMBERS_PER_BLOCK, decode

NUM_BLOCKS = [1, 33, 4096, 9001]  # some of an item, an item, several


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("form", sorted(DECODED))
def test_decoded_numbers_have_the_bits_that_the_form_defines(form, num_threads, torch_threads):
    torch_threads(num_threads)
    kind = gguf.GGMLQuantizationType[form]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    assert block_size == NUMBERS_PER_BLOCK
    for num_blocks in NUM_BLOCKS:
        rng = np.random.default_rng(num_blocks)
        blocks = rng.integers(256, size=(num_blocks, block_bytes), dtype=np.uint8)
        # Scales of every size, both signs of zero and subnormal ones among them, but finite.
        scales = rng.integers(0x7C00, size=(num_blocks, 2), dtype=np.uint16)
        scales |= rng.integers(2, size=scales.shape, dtype=np.uint16) << 15
        width = 2 if form == "Q4_1" else 1
        blocks[:, : 2 * width] = scales[:, :width].copy().view(np.uint8)
        expected = gguf.quants.dequantize(blocks, kind).reshape(num_blocks, block_size)
        blocks.flags.writeable = False  # a file's are mapped for reading
        assert np.array_equal(decode(blocks, form).view(np.uint32), expected.view(np.uint32))


def test_a_scale_that_is_no_number_makes_its_block_so():
    blocks = np.zeros((3, 34), np.uint8)
    blocks[1, :2] = np.array([np.nan], np.float16).view(np.uint8)
    blocks[:, 2:] = 7
    assert np.isnan(decode(blocks, "Q8_0")).all(-1).tolist() == [False, True, False]
