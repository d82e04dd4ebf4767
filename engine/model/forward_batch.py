"""What the layer stack is given for one step: tensors only, made by the runner."""

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.ops import AttentionPlan


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The T tokens of a step, chunk after chunk.

    token_ids, positions, slot_mapping  [T] int64
    attention                           which cached keys each token sees
    sampled_index                       [R] int64, the tokens whose logits are wanted
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    attention: AttentionPlan
    sampled_index: Tensor
