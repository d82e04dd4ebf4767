"""`transformers`: one static batch, padded on the left, greedy. Usage: run_transformers.py MODEL DTYPE."""

import importlib.metadata
import sys
import time
from pathlib import Path

import torch
from driver import serve
from transformers import AutoModelForCausalLM


def main():
    path, dtype = Path(sys.argv[1]), getattr(torch, sys.argv[2])
    where = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    folder = path.parent if where else path
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **where).eval()
    torch.set_num_threads(int(sys.argv[3]))

    @torch.inference_mode()
    def run(rows):
        began = time.perf_counter()
        width = max(len(row["prompt"]) for row in rows)
        token_ids = torch.tensor([[0] * (width - len(row["prompt"])) + row["prompt"] for row in rows])
        mask = torch.tensor([[0] * (width - len(row["prompt"])) + [1] * len(row["prompt"]) for row in rows])
        position = (mask.cumsum(-1) - 1).clamp(min=0)
        ended, first, cache = [0.0] * len(rows), None, None
        for step in range(max(row["num_output"] for row in rows)):
            result = model(
                token_ids, attention_mask=mask, position_ids=position, past_key_values=cache, logits_to_keep=1
            )
            cache, token_ids = result.past_key_values, result.logits[:, -1].argmax(-1, keepdim=True)
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            position = position[:, -1:] + 1
            now = time.perf_counter() - began
            first = now if first is None else first
            for index, row in enumerate(rows):
                if row["num_output"] == step + 1:
                    ended[index] = now
        return max(ended), [first] * len(rows), ended

    version = importlib.metadata.version("transformers")
    serve({"peer": "transformers", "version": version, "config": {"batching": "static", "dtype": sys.argv[2]}}, run)


main()
