"""Both forms of attention against their specification, over odd sizes."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.core.config import SchedulerConfig
from engine.kernels import ops, reference
from engine.model.loader import load_model
from engine.runner.attention_planner import GatheredPlanner
from engine.runner.chunks import Chunks, Slots
from engine.runner.kv_cache import KvCache
from engine.runner.paged_planner import PagedPlanner
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


@pytest.fixture(scope="module", params=[(1, "float32"), (2, "float32"), (6, "float32"), (2, "bfloat16")])
def model(request, tmp_path_factory):
    num_kv_heads, dtype = request.param
    reference_model = tiny_llama.make_model(num_key_value_heads=num_kv_heads)
    return load_model(tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", reference_model), dtype=dtype)


class Scene:
    """A pool of NaN, in which the sequences of a mix own blocks all over it, with keys up to where they start."""

    def __init__(self, model, mix, window=None, block_size=BLOCK_SIZE):
        num_blocks = 20 + sum(-(-(start + count) // block_size) for start, count in mix)
        max_model_len = max(401, *(start + count + 1 for start, count in mix))
        self.config = SchedulerConfig(8, 2048, block_size, num_device_blocks=num_blocks, max_model_len=max_model_len)
        self.mix, self.window, self.block_size = mix, window, block_size
        self.model = replace(model, config=replace(model.config, sliding_window=window))
        self.kv_cache, self.rows = KvCache(model, self.config), RowTable(self.config)
        torch.manual_seed(0)
        order = torch.randperm(num_blocks).tolist()
        starts, num_tokens = np.array(mix).T
        self.chunks = Chunks(np.arange(len(mix)), starts, num_tokens, np.cumsum(num_tokens) - num_tokens)
        self.kv_cache.blocks[:num_blocks] = torch.nan
        self.block_tables = []
        for row, (start, num_keys) in enumerate(zip(starts.tolist(), self.chunks.num_keys.tolist(), strict=True)):
            table = [order.pop() for _ in range(-(-num_keys // block_size))]
            self.block_tables.append(table)
            self.rows.block_ids[row, : len(table)] = table
            self.rows.block_ids[row, len(table) :] = order[0]  # what a row owned before is still there
            for position in range(start):
                slot = self.kv_cache.layers[0, table[position // block_size], position % block_size]
                slot.copy_(torch.randn(slot.shape))
        num_rows = model.config.num_heads + 2 * model.config.num_kv_heads
        self.qkv = torch.randn(int(num_tokens.sum()), num_rows, model.config.head_dim).to(model.dtype)
        self.positions = np.concatenate([np.arange(start, start + count) for start, count in mix])
        rows = np.repeat(np.arange(len(mix)), num_tokens)
        blocks = self.rows.block_ids[rows, self.positions // block_size]
        self.slots = Slots(blocks, self.positions % block_size)

    @property
    def frequencies(self):
        return torch.tensor(self.model.config.rope_frequencies())

    def expected(self):
        """What the specification says, and the layer's blocks as they are afterwards."""
        num_kv_heads = self.model.config.num_kv_heads
        cached = self.kv_cache.layers[0].clone()
        rotated = reference.rope(self.qkv[:, :-num_kv_heads], torch.from_numpy(self.positions), self.frequencies)
        queries, keys = rotated[:, : self.model.config.num_heads], rotated[:, self.model.config.num_heads :]
        kv = torch.cat((keys, self.qkv[:, -num_kv_heads:]), dim=1)
        reference.store_kv(cached, kv, torch.from_numpy(self.slots.blocks * self.block_size + self.slots.places))
        attended = reference.paged_attention(queries, cached, self.block_tables, self.mix, self.window)
        return attended.flatten(1), cached

    def attend(self, planner):
        rotation = ops.rotation(torch.from_numpy(self.positions), self.frequencies)
        plan = planner.plan(self.chunks, self.slots)
        return ops.attend(self.qkv, rotation, self.kv_cache.layers[0], plan, self.window)


@pytest.fixture(params=MIXES.values(), ids=MIXES.keys())
def scene(model, request):
    return Scene(model, request.param)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_blocks_are_read_in_place_and_nothing_behind_the_last_key(scene, num_threads, torch_threads):
    torch_threads(num_threads)
    check(scene, PagedPlanner(scene.model, scene.rows))


@pytest.mark.parametrize("max_gathered_blocks", [26, 512])
def test_chunks_are_gathered_and_attend_to_their_own_blocks(scene, max_gathered_blocks):
    # Gathered blocks are read to their end, which the runner clears when a block is entered.
    scene.kv_cache.layers[0][scene.kv_cache.layers[0].isnan()] = 0
    planner = GatheredPlanner(scene.model, scene.kv_cache, scene.rows)
    planner._gathered = planner._gathered[:max_gathered_blocks]
    check(scene, planner)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 40, 500])
def test_tokens_see_no_further_back_than_their_window(model, window):
    for mix in (MIXES["chunks with a past"], MIXES["decodes, then prompts"]):
        scene = Scene(model, mix, window)
        check(scene, PagedPlanner(scene.model, scene.rows))
        scene.kv_cache.layers[0][scene.kv_cache.layers[0].isnan()] = 0
        check(scene, GatheredPlanner(scene.model, scene.kv_cache, scene.rows))


FAST = {("bfloat16", 64, 16), ("bfloat16", 32, 5), ("float32", 24, 32)}
FORMS = itertools.product(("float32", "bfloat16"), (24, 32, 64), (5, 16, 32))


@pytest.mark.parametrize("form", [pytest.param(form, marks=[pytest.mark.slow] * (form not in FAST)) for form in FORMS])
def test_long_sequences_are_attended_part_by_part(form, tmp_path):
    dtype, head_dim, block_size = form
    reference_model = tiny_llama.make_model(num_key_value_heads=2, head_dim=head_dim)
    model = load_model(tiny_llama.write_folder(tmp_path / "m", reference_model), dtype=dtype)
    mix = [(510, 1), (511, 1), (512, 1), (509, 7), (1100, 2), (600, 30)]
    for window in (None, 511, 600):
        scene = Scene(model, mix, window, block_size)
        check(scene, PagedPlanner(scene.model, scene.rows))


def test_what_no_token_of_a_step_sees_is_not_read(model):
    scene = Scene(model, [(100, 20), (130, 1)], window=30)
    expected, _ = scene.expected()
    for table, oldest_block in zip(scene.block_tables, (4, 6), strict=True):
        scene.kv_cache.layers[0][table[:oldest_block]] = torch.nan
    attended = scene.attend(PagedPlanner(scene.model, scene.rows))
    torch.testing.assert_close(attended, expected, atol=tolerance(scene), rtol=0)


def check(scene, planner):
    expected, cached = scene.expected()
    attended = scene.attend(planner)
    torch.testing.assert_close(attended, expected, atol=tolerance(scene), rtol=0)
    torch.testing.assert_close(scene.kv_cache.layers[0], cached, atol=tolerance(scene), rtol=0, equal_nan=True)


def tolerance(scene):
    return 1e-5 if scene.model.dtype == torch.float32 else 0.02


def test_a_sequence_that_is_no_number_leaves_the_others_as_they_are(model):
    scene = Scene(model, [(20, 1), (20, 1), (3, 9)])
    undisturbed = scene.attend(PagedPlanner(model, scene.rows))
    scene.kv_cache.layers[0][scene.block_tables[1][0], 5] = torch.nan
    attended = scene.attend(PagedPlanner(model, scene.rows))
    assert attended[1].isnan().all()
    assert torch.equal(attended[[0, *range(2, 11)]], undisturbed[[0, *range(2, 11)]])


def test_a_query_gets_the_same_bits_whoever_stands_beside_it(model):
    alone, crowded = Scene(model, [(17, 30)]), Scene(model, [(17, 30), (100, 1), (0, 50)])
    crowded.qkv[:30] = alone.qkv
    for position in range(17):
        source = alone.kv_cache.layers[0][alone.block_tables[0][position // BLOCK_SIZE], position % BLOCK_SIZE]
        crowded.kv_cache.layers[0][crowded.block_tables[0][position // BLOCK_SIZE], position % BLOCK_SIZE] = source
    attended = [scene.attend(PagedPlanner(model, scene.rows)) for scene in (alone, crowded)]
    assert torch.equal(attended[0], attended[1][:30])
