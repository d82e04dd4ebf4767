"""All layers of a step in one call: nothing of Python, and no region to enter, between the first norm and the last
product.

The threads of a step go through twelve phases a layer together (`shared_work`). What a token gets does not depend on
its neighbours, bit for bit: every sum over its row runs in one order.
"""

from collections import abc
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.kernels.cpu.attention import NO_WINDOW, NUM_PHASES, PackedKeys, PagedChunks, attention_phases, packed_keys
from engine.kernels.cpu.compiled import elements, part, unlocked
from engine.kernels.cpu.panels import Panels
from engine.kernels.cpu.products import TILE_ROWS, added, gated_products, rows_code, stored
from engine.kernels.cpu.rows import encode_part, norm_row
from engine.kernels.cpu.shared_work import counters, done, run_together, take, wait
from engine.kernels.cpu.tile_code import LANES

_PHASES_PER_LAYER = 8 + NUM_PHASES
_GRAINS = 16  # items of a phase that goes by rows, about


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. head_norms [H + KH, D], of the heads of q and k, where the family norms them · window: tokens that a
    token sees, its own included; None: all up to its own."""

    input_norm: Tensor
    qkv: Panels
    output: Panels
    post_attention_norm: Tensor
    gate_up: Panels
    down: Panels
    head_norms: Tensor | None = None
    window: int | None = None

    @classmethod
    def of(
        cls,
        norms: tuple[Tensor, Tensor],
        products: tuple[Panels | Tensor, Panels | Tensor, Panels | Tensor, Panels | Tensor],
        head_norms: Tensor | None,
        window: int | None,
    ) -> "LayerWeights | None":
        """norms, before and behind attention · products: q with k and v, output, gate with up, down. None where they
        are not in panels, or a gate in one with what it lets through."""
        qkv, output, gate_up, down = products
        if not (isinstance(qkv, Panels) and isinstance(output, Panels)):
            return None
        if not (isinstance(gate_up, Panels) and isinstance(down, Panels)) or gate_up.num_columns % (2 * LANES):
            return None
        return cls(norms[0], qkv, output, norms[1], gate_up, down, head_norms, window)

    @property
    def products(self) -> tuple[Panels, Panels, Panels, Panels]:
        return self.qkv, self.output, self.gate_up, self.down


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of attention, and the numbers in each."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def num_shared(self) -> int:
        return self.num_heads // self.num_kv_heads


class LayerStack:
    """The layers of one model. One step at a time."""

    def __init__(self, layers: abc.Sequence[LayerWeights], heads: HeadShape, eps: float) -> None:
        self._layers = layers  # their memory is read by address
        self._heads = heads
        self._eps = np.float32(eps)
        products = layers[0].products
        self._precision = products[0].precision
        self._sizes = np.array([(each.num_panels, each.num_words) for each in products], np.int64)
        self._widths = [each.num_columns for each in products]
        self._num_words = max(each.num_words for each in products)
        self._addresses = np.stack([[each.addresses() for each in layer.products] for layer in layers])
        norms = [torch.stack((layer.input_norm, layer.post_attention_norm)) for layer in layers]
        self._norms = torch.stack(norms).float().numpy()
        no_norms = torch.empty((0, heads.head_dim))
        head_norms = [no_norms if layer.head_norms is None else layer.head_norms for layer in layers]
        self._head_norms = torch.stack(head_norms).float().numpy()
        self._windows = np.array([layer.window or NO_WINDOW for layer in layers], np.int64)
        self._scratch: tuple[Tensor, ...] = ()
        self._num_tokens = -1
        self._arrays: tuple[Any, ...] = ()
        self._packed: PackedKeys | None = None

    def forward(self, residual: Tensor, rotation: tuple[Tensor, Tensor], caches: Tensor, plan: PagedChunks) -> None:
        """residual [T, E] float32 becomes what the last layer leaves.

        rotation, cosine and sine [T, D/2] float32 · caches [layers, B, S, 2, KH, D], written
        """
        heads, num_layers = self._heads, len(self._layers)
        kernel = _kernel(self._precision.value, caches.dtype.itemsize, heads.num_shared, heads.head_dim)
        code = rows_code(self._precision.value)
        run_together(
            torch.get_num_threads(),
            kernel,
            counters(_PHASES_PER_LAYER * num_layers),
            (self._addresses, self._sizes, self._norms, self._head_norms, self._windows, self._eps, code),
            residual.numpy(),
            (rotation[0].numpy(), rotation[1].numpy()),
            elements(caches),
            plan.arrays(),
            self._packed_keys(plan.num_packed_keys, caches.dtype),
            *self._buffers(len(residual), caches.dtype),
        )

    def _buffers(self, num_tokens: int, dtype: torch.dtype) -> tuple[Any, ...]:
        """Kept from step to step, as the kernel takes them: words and scales of rows, qkv in the cache's dtype,
        attended and activated float32."""
        if num_tokens != self._num_tokens:
            words, scales, qkv, attended, activated = self._scratch_for(num_tokens, dtype)
            by_head = (num_tokens, -1, self._heads.head_dim)
            self._num_tokens = num_tokens
            self._arrays = (
                (words.numpy(), scales.numpy()),
                (elements(qkv), elements(qkv.view(by_head))),
                (attended.numpy(), attended.view(by_head).numpy()),
                activated.numpy(),
            )
        return self._arrays

    def _scratch_for(self, num_tokens: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        if not self._scratch or len(self._scratch[0]) < num_tokens:
            qkv, _, gate_up, _ = self._widths
            self._scratch = (
                torch.zeros((num_tokens, self._num_words), dtype=torch.int32),
                torch.ones(num_tokens),
                torch.empty((num_tokens, qkv), dtype=dtype),
                torch.empty((num_tokens, self._heads.num_heads * self._heads.head_dim)),
                torch.empty((num_tokens, gate_up // 2)),
            )
        return tuple(buffer[:num_tokens] for buffer in self._scratch)

    def _packed_keys(self, num_keys: int, dtype: torch.dtype) -> PackedKeys:
        """Kept, too: of the most keys so far."""
        if self._packed is None or self._packed[0].shape[1] * LANES < num_keys:
            self._packed = packed_keys(num_keys, self._heads.num_kv_heads, self._heads.head_dim, dtype)
        return self._packed


@cache
def _kernel(per_word: int, element_bytes: int, num_shared: int, head_dim: int) -> Any:
    """For one precision and shape of heads, which are constants of its code."""
    normalize, encode = _normalize(per_word), _encode(per_word)
    attend = attention_phases(element_bytes, num_shared, head_dim)
    project, add, gate = stored(), added(), gated_products()

    def layers(
        phases: Any, weights: Any, residual: Any, rotation: Any, caches: Any, plan: Any, packed: Any, encoded: Any,
        qkv: Any, attended: Any, activated: Any,
    ) -> None:  # fmt: skip
        addresses, sizes, norms, head_norms, windows, eps, code = weights
        tile, phase = np.empty((TILE_ROWS, 2 * LANES), np.float32), 0
        rows, scales = encoded
        for layer in range(len(addresses)):
            at, cached = addresses[layer], caches[layer]
            phase = normalize(phases, phase, residual, norms[layer, 0], eps, rows, scales)
            phase = project(phases, phase, rows, scales, _weight(at, sizes, 0, code), qkv[0], tile)
            head_norm, window = (head_norms[layer], eps), windows[layer]
            phase = attend(phases, phase, qkv[1], head_norm, rotation, cached, plan, packed, window, attended[1])
            phase = encode(phases, phase, attended[0], rows, scales)
            phase = add(phases, phase, rows, scales, _weight(at, sizes, 1, code), residual, tile)
            phase = normalize(phases, phase, residual, norms[layer, 1], eps, rows, scales)
            phase = gate(phases, phase, rows, scales, _weight(at, sizes, 2, code), activated, tile)
            phase = encode(phases, phase, activated, rows, scales)
            phase = add(phases, phase, rows, scales, _weight(at, sizes, 3, code), residual, tile)

    return unlocked(layers, per_word, element_bytes, num_shared, head_dim)


@part
def _weight(addresses: Any, sizes: Any, product: int, code: int) -> Any:
    at = addresses[product]
    return sizes[product, 0], sizes[product, 1], (at[0], at[1], at[2], at[3]), code


@cache
def _normalize(per_word: int) -> Any:
    encode = encode_part(per_word)

    @part
    def normalize(phases: Any, phase: int, residual: Any, weight: Any, eps: Any, rows: Any, scales: Any) -> int:
        """rows become the norms of the residual stream."""
        num_rows, grain = len(residual), 1 + len(residual) // _GRAINS
        normed = np.empty(residual.shape[1], np.float32)
        begin = take(phases, phase, grain)
        while begin < num_rows:
            end = min(num_rows, begin + grain)
            for row in range(begin, end):
                norm_row(residual[row], weight, eps, normed)
                encode(normed, rows[row], scales, row)
            done(phases, phase, end - begin)
            begin = take(phases, phase, grain)
        wait(phases, phase, num_rows)
        return phase + 1

    return normalize


@cache
def _encode(per_word: int) -> Any:
    store_row = encode_part(per_word)

    @part
    def encode(phases: Any, phase: int, values: Any, rows: Any, scales: Any) -> int:
        """rows become values [T, K] float32."""
        num_rows, grain = len(values), 1 + len(values) // _GRAINS
        begin = take(phases, phase, grain)
        while begin < num_rows:
            end = min(num_rows, begin + grain)
            for row in range(begin, end):
                store_row(values[row], rows[row], scales, row)
            done(phases, phase, end - begin)
            begin = take(phases, phase, grain)
        wait(phases, phase, num_rows)
        return phase + 1

    return encode
