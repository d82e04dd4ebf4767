"""The weights of a model in a GGUF file, under Hugging Face's names.

llama.cpp stores the rows of q and k of the architecture `llama`, and of no other, in the order of its interleaved
rotation; they are put back into the order of Hugging Face's half-by-half rotation here. Source: `permute` of
llama.cpp's converter, inverted.
"""

import re
from collections import abc

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.errors import UnsupportedModelError
from engine.model.gguf_config import EMBEDDING, HEAD, ROPE_DIVISORS, config_from_gguf
from engine.model.gguf_file import GgufFile
from engine.model.weights import StoredTensor

_TOP_LEVEL = {
    EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    HEAD: "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_LAYER_PARAMETER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_TOP_LEVEL_IN_FILE = {ours: theirs for theirs, ours in _TOP_LEVEL.items()}
_IN_LAYER_IN_FILE = {ours: theirs for theirs, ours in _IN_LAYER.items()}
_INTERLEAVED = "llama"


class GgufWeights:
    """A WeightSource over an open GGUF file."""

    described_by = "its metadata"

    def __init__(self, file: GgufFile) -> None:
        self.path = file.path
        self._file = file
        self._config = config_from_gguf(file)
        self._stored = {
            _hugging_face_name(file, name): StoredTensor(file.path, name, tensor.shape)
            for name, tensor in file.tensors.items()
            if name != ROPE_DIVISORS
        }

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def stored(self) -> abc.Mapping[str, StoredTensor]:
        return self._stored

    def name_in_file(self, name: str) -> str:
        in_layer = _LAYER_PARAMETER.fullmatch(name)
        if in_layer is None:
            return _TOP_LEVEL_IN_FILE[name]
        return f"blk.{in_layer[1]}.{_IN_LAYER_IN_FILE[in_layer[2]]}.{in_layer[3]}"

    def weight(self, name: str) -> Tensor:
        decoded = self._file.tensor(self._stored[name].name)
        weight = torch.from_numpy(decoded if decoded.flags.writeable else decoded.copy())
        if self._config.architecture != _INTERLEAVED:
            return weight
        if ".q_proj." in name:
            return _rotated_by_halves(weight, self._config.num_heads)
        if ".k_proj." in name:
            return _rotated_by_halves(weight, self._config.num_kv_heads)
        return weight


def _hugging_face_name(file: GgufFile, name: str) -> str:
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    in_layer = _LAYER_NAME.fullmatch(name)
    if in_layer is None or in_layer[2] not in _IN_LAYER:
        raise UnsupportedModelError(file.path, f"tensor {name!r} is of a kind that is not supported")
    return f"model.layers.{in_layer[1]}.{_IN_LAYER[in_layer[2]]}.{in_layer[3]}"


def _rotated_by_halves(rows: Tensor, num_heads: int) -> Tensor:
    """Reorder each head's rows (x0 y0 x1 y1 ...) to (x0 x1 ... y0 y1 ...). rows [num_heads * head_dim, ...]."""
    pairs = rows.view(num_heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
