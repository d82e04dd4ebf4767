"""The weights of a Llama model in a GGUF file, under Hugging Face's names.

llama.cpp stores the rows of q and k in the order of its interleaved rotation; they are put back into the order of
Hugging Face's half-by-half rotation here. Source: `permute` of llama.cpp's converter, inverted.
"""

import re

import torch
from torch import Tensor

from engine.model.config import GgufShapes, ModelConfig, config_from_gguf
from engine.model.errors import ModelFileError
from engine.model.gguf_file import GgufFile

_TOP_LEVEL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")


class GgufWeights:
    """A WeightSource over an open GGUF file."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._config = config_from_gguf(file.path, file.metadata, _shapes(file))

    @property
    def config(self) -> ModelConfig:
        return self._config

    def weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        gguf_name = _gguf_name(name)
        weight = torch.from_numpy(self._file.tensor(gguf_name).copy())
        if tuple(weight.shape) != shape:
            problem = f"tensor {gguf_name!r} has shape {tuple(weight.shape)}, its metadata asks for {shape}"
            raise ModelFileError(self._file.path, problem)
        if name.endswith("q_proj.weight"):
            return _rotated_by_halves(weight, self._config.num_heads)
        if name.endswith("k_proj.weight"):
            return _rotated_by_halves(weight, self._config.num_kv_heads)
        return weight


def _shapes(file: GgufFile) -> GgufShapes:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(file.path, "has no tensor 'token_embd.weight', so it is not a language model")
    divisors = tuple(file.tensor("rope_freqs.weight").tolist()) if "rope_freqs.weight" in file.tensors else None
    return GgufShapes(embedding.shape[0], "output.weight" not in file.tensors, divisors)


def _gguf_name(name: str) -> str:
    in_layer = _LAYER_NAME.fullmatch(name)
    if in_layer is None:
        return _TOP_LEVEL[name]
    return f"blk.{in_layer[1]}.{_IN_LAYER[in_layer[2]]}.weight"


def _rotated_by_halves(weight: Tensor, num_heads: int) -> Tensor:
    """Reorder each head's rows (x0 y0 x1 y1 ...) to (x0 x1 ... y0 y1 ...). weight [num_heads * head_dim, in]."""
    num_rows, num_columns = weight.shape
    pairs = weight.view(num_heads, num_rows // num_heads // 2, 2, num_columns)
    return pairs.transpose(1, 2).reshape(num_rows, num_columns)
