"""What bfloat16 and 8-bit weights cost in quality, against float32 on the same weights.

Perplexity of the project's own pages, in windows that each start anew; and greedy agreement: how often the likeliest
next token is the one that float32 has, at every place of those windows, where each precision reads the same text.
Random text would flatter nobody: what is nearly a tie there is a tie in nobody's use.
"""

import hashlib
import math
from collections import abc
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from engine.core.config import SchedulerConfig
from engine.core.plan import RowStart, StepPlan
from engine.core.types import BlockId, SamplingParams, SequenceKey
from engine.model.info import LoadedModel
from engine.model.loader import load_model
from engine.runner.inputs import InputBuilder
from engine.runner.kv_cache import KvCache
from engine.runner.paged_planner import PagedPlanner
from engine.runner.row_table import RowTable
from tests.bench.report import Report, arguments

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("architecture.md", "fairness.md", "quotas.md", "requests.md")
WINDOW, BLOCK_SIZE = 512, 16
PRECISIONS = {"float32": ("float32", None), "bf16": ("bfloat16", None), "int8": ("bfloat16", "int8")}


@dataclass(frozen=True, slots=True)
class Reading:
    """At every place of the text: the loss of the token that follows, and the likeliest one."""

    losses: Tensor
    likeliest: Tensor

    @property
    def perplexity(self) -> float:
        return math.exp(self.losses.mean())


def text() -> str:
    return "\n".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)


def windows(model: LoadedModel, num_windows: int) -> list[list[int]]:
    """The text's first tokens, WINDOW at a time."""
    token_ids = Tokenizer.from_str(model.info.tokenizer_json.decode()).encode(text(), add_special_tokens=False).ids
    begins = range(0, min(len(token_ids) - WINDOW, num_windows * WINDOW), WINDOW)
    return [token_ids[begin : begin + WINDOW] for begin in begins]


@torch.inference_mode()
def read(model: LoadedModel, texts: abc.Iterable[list[int]]) -> Reading:
    """Each text from its first token on, as a prompt of the engine."""
    num_blocks = WINDOW // BLOCK_SIZE
    config = SchedulerConfig(1, WINDOW, BLOCK_SIZE, num_device_blocks=num_blocks, max_model_len=WINDOW)
    rows, cache = RowTable(config), KvCache(model, config)
    builder = InputBuilder(rows, PagedPlanner(model, rows), BLOCK_SIZE, model.device)
    losses, likeliest = [], []
    for token_ids in texts:
        blocks = tuple(BlockId(block) for block in range(num_blocks))
        start = RowStart(0, SequenceKey("", 0), tuple(token_ids), len(token_ids), blocks, SamplingParams())
        plan = StepPlan(0, (), (start,), (), (0,), (0,), (len(token_ids),), (True,))
        rows.apply(plan)
        streams = model.module.model(builder.build(plan).batch, cache.layers)
        logits = model.module.logits(streams, torch.from_numpy(np.arange(len(token_ids) - 1)))
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(token_ids[1:]), reduction="none"))
        likeliest.append(logits.argmax(-1))
    return Reading(torch.cat(losses), torch.cat(likeliest))


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--windows", type=int, default=16, help=f"of {WINDOW} tokens")
    args = parser.parse_args()
    num_windows = 2 if args.quick else args.windows
    readings = {}
    for name, (dtype, quantization) in PRECISIONS.items():
        model = load_model(None, dtype=dtype, device="cpu", quantization=quantization)
        readings[name] = read(model, windows(model, num_windows))
    config = {
        "model": model.info.name,
        "text": hashlib.sha256(text().encode()).hexdigest()[:12],
        "pages": PAGES,
        "tokens": len(readings["float32"].losses),
    }
    report = Report("quality", config)
    exact = readings["float32"]
    for name, reading in readings.items():
        report.add(**{f"perplexity_{name}": reading.perplexity})
        if reading is not exact:
            agreement = (reading.likeliest == exact.likeliest).float().mean().item()
            report.add(**{f"greedy_agreement_{name}": agreement})
            report.add(**{f"largest_loss_difference_{name}": (reading.losses - exact.losses).abs().max().item()})
    report.publish(args.json)


if __name__ == "__main__":
    main()
