"""Log-probabilities of sampled tokens and of the likeliest ones, under the model's own, unmodified distribution."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.plan import TokenLogprobs
from engine.runner.row_table import NO_LOGPROBS


def token_logprobs(logits: Tensor, token_ids: Tensor, num_logprobs: NDArray[np.int64]) -> dict[int, TokenLogprobs]:
    """By index of row, for the rows that want them. logits [R, V] float32 before penalties and temperature."""
    wanted = np.flatnonzero(num_logprobs != NO_LOGPROBS)
    if not len(wanted):
        return {}
    index = torch.from_numpy(wanted).to(logits.device)
    logprobs = logits[index].log_softmax(-1)
    sampled = logprobs.gather(1, token_ids[index][:, None])[:, 0].tolist()
    num_top = min(int(num_logprobs[wanted].max()), logits.shape[1])
    top = logprobs.topk(num_top)
    top_rows = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return {
        int(row): TokenLogprobs(logprob, tuple(zip(ids[:num_shown], values[:num_shown], strict=True)))
        for row, logprob, num_shown, (ids, values) in zip(
            wanted, sampled, num_logprobs[wanted].tolist(), top_rows, strict=True
        )
    }
