"""Grouped, padded attention against its specification, over odd sizes."""

import numpy as np
import pytest
import torch

from engine.core.config import SchedulerConfig
from engine.kernels import reference
from engine.kernels.ops import paged_attention
from engine.model.loader import load_model
from engine.runner.attention_planner import AttentionPlanner, Chunks
from engine.runner.kv_cache import KvCache
from engine.runner.row_table import RowTable
from tests.model import tiny_llama

BLOCK_SIZE = 16
MIXES = {
    "one decode": [(0, 1)],
    "first tokens": [(0, 1), (0, 1)],
    "around a block": [(14, 1), (15, 1), (16, 1), (17, 1)],
    "chunks of one prompt's sizes": [(0, 15), (0, 16), (0, 17)],
    "chunks with a past": [(3, 13), (16, 16), (31, 1), (33, 40)],
    "decodes, then prompts": [(1, 1), (200, 1), (5, 1), (0, 90), (64, 3), (100, 100)],
    "lengths far apart": [(400, 1), (2, 1), (390, 1), (3, 1), (300, 100)],
}


@pytest.fixture(scope="module", params=[1, 2, 6])
def model(request, tmp_path_factory):
    reference_model = tiny_llama.make_model(num_key_value_heads=request.param)
    return load_model(tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", reference_model), dtype="float32")


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
@pytest.mark.parametrize("max_gathered_blocks", [26, 512])
def test_chunks_attend_to_their_own_blocks(model, mix, max_gathered_blocks):
    config = SchedulerConfig(8, 2048, BLOCK_SIZE, num_device_blocks=120, max_model_len=401)
    kv_cache, rows = KvCache(model, config), RowTable(config)
    kv_cache.gathered = kv_cache.gathered[:max_gathered_blocks]
    torch.manual_seed(0)
    order = torch.randperm(120).tolist()
    starts, num_tokens = np.array(mix).T
    block_tables = []
    for row, num_keys in enumerate((starts + num_tokens).tolist()):
        block_tables.append([order.pop() for _ in range(-(-num_keys // BLOCK_SIZE))])
        rows.block_ids[row, : len(block_tables[-1])] = block_tables[-1]
        rows.block_ids[row, len(block_tables[-1]) :] = order[0]  # what a row owned before is still there
    cache = kv_cache.layers[0]
    for block in range(120):
        cache[block] = torch.nan
    for table, num_keys in zip(block_tables, (starts + num_tokens).tolist(), strict=True):
        slots = torch.randn(len(table) * BLOCK_SIZE, *cache.shape[2:])
        slots[num_keys:] = 0
        cache[table] = slots.view(len(table), *cache.shape[1:])
    chunks = Chunks(np.arange(len(mix)), starts, num_tokens, np.cumsum(num_tokens) - num_tokens)
    queries = torch.randn(int(num_tokens.sum()), model.config.num_heads, model.config.head_dim)
    attended = paged_attention(queries, cache, AttentionPlanner(model, kv_cache, rows).plan(chunks))
    expected = reference.paged_attention(queries, cache, block_tables, mix).flatten(1)
    torch.testing.assert_close(attended, expected, atol=1e-5, rtol=0)
