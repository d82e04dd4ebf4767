"""llama.cpp through `llama-cpp-python`'s low-level batch calls: one sequence a request, greedy, all at once.

Usage: run_llama_cpp.py MODEL DTYPE THREADS. MODEL is a GGUF file, whose quantization is what is measured; DTYPE is
ignored.
"""

import ctypes
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np
from driver import serve

CONTEXT, STEP_TOKENS = 24_576, 256


class Batch:
    """The tokens of a step; `sampled` are the places whose logits are wanted."""

    def __init__(self, batch):
        self._batch, self.size = batch, 0

    def clear(self):
        self.size = self._batch.n_tokens = 0

    def add(self, token, position, sequence, *, wanted):
        batch, index = self._batch, self.size
        batch.token[index], batch.pos[index], batch.n_seq_id[index] = token, position, 1
        batch.seq_id[index][0], batch.logits[index] = sequence, wanted
        self.size = batch.n_tokens = index + 1
        return index


def main():
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), llama_cpp.llama_model_default_params())
    limits = llama_cpp.llama_context_default_params()
    limits.n_ctx, limits.n_batch, limits.n_ubatch, limits.n_seq_max = CONTEXT, STEP_TOKENS, STEP_TOKENS, 64
    limits.n_threads = limits.n_threads_batch = int(sys.argv[3])
    limits.kv_unified = True
    context = llama_cpp.llama_init_from_model(model, limits)
    raw = llama_cpp.llama_batch_init(STEP_TOKENS, 0, 1)
    batch = Batch(raw)
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    memory = llama_cpp.llama_get_memory(context)

    def likeliest(index):
        logits = llama_cpp.llama_get_logits_ith(context, index)
        return int(np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (size,)).argmax())

    def run(rows):
        llama_cpp.llama_memory_clear(memory, 1)
        began = time.perf_counter()
        pending = [list(row["prompt"]) for row in rows]
        done, outputs = [0] * len(rows), [0] * len(rows)
        first, ended = [None] * len(rows), [None] * len(rows)
        while any(at is None for at in ended):
            batch.clear()
            wanted = {}
            active = [index for index in range(len(rows)) if ended[index] is None]
            for index in sorted(active, key=lambda index: len(pending[index])):
                taken = min(len(pending[index]), STEP_TOKENS - batch.size)
                for offset in range(taken):
                    is_last = offset == len(pending[index]) - 1
                    place = batch.add(pending[index][offset], done[index] + offset, index, wanted=is_last)
                    if is_last:
                        wanted[index] = place
                done[index] += taken
                del pending[index][:taken]
            if llama_cpp.llama_decode(context, raw):
                raise RuntimeError("llama_decode failed")
            chosen = {index: likeliest(place) for index, place in wanted.items()}
            now = time.perf_counter() - began
            for index, token in chosen.items():
                outputs[index] += 1
                first[index] = now if first[index] is None else first[index]
                if outputs[index] == rows[index]["num_output"]:
                    ended[index] = now
                    llama_cpp.llama_memory_seq_rm(memory, index, -1, -1)
                else:
                    pending[index].append(token)
        return max(ended), first, ended

    config = {"file": Path(sys.argv[1]).name, "context": CONTEXT, "step_tokens": STEP_TOKENS}
    serve({"peer": "llama.cpp", "version": llama_cpp.__version__, "config": config}, run)


main()
