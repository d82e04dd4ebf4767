"""What the layer stack is given for one step: tensors only, made by the runner."""

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.ops import ChunkPlan


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The T tokens of a step, chunk after chunk.

    token_ids, positions  [T] int64
    attention             where keys and values go, and which of them each token sees
    sampled_index         [R] int64, the tokens whose logits are wanted
    """

    token_ids: Tensor
    positions: Tensor
    attention: ChunkPlan
    sampled_index: Tensor
