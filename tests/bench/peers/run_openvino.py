"""OpenVINO GenAI's continuous batching, greedy. Usage: run_openvino.py MODEL DTYPE THREADS.

MODEL is a folder that `optimum-cli export openvino` made, or a GGUF file of a kind that it reads. DTYPE is the hint for
the precision of activations.
"""

import sys
import time

import numpy as np
import openvino
import openvino_genai as genai
from driver import serve

HINTS = {"bfloat16": "bf16", "float32": "f32"}


def main():
    cache = genai.SchedulerConfig()
    cache.num_kv_blocks = 1024
    properties = {"INFERENCE_PRECISION_HINT": HINTS[sys.argv[2]], "INFERENCE_NUM_THREADS": int(sys.argv[3])}
    pipeline = genai.ContinuousBatchingPipeline(sys.argv[1], cache, "CPU", properties)
    number = 0

    def limits(row):
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = row["num_output"], True, False
        return config

    def run(rows):
        nonlocal number
        began = time.perf_counter()
        waiting = sorted(enumerate(rows), key=lambda item: item[1]["arrival_s"])
        first, ended, running = [None] * len(rows), [None] * len(rows), {}
        while waiting or pipeline.has_non_finished_requests():
            while waiting and waiting[0][1]["arrival_s"] <= time.perf_counter() - began:
                index, row = waiting.pop(0)
                prompt = openvino.Tensor(np.array([row["prompt"]], dtype=np.int64))
                number += 1
                running[index] = pipeline.add_request(number, prompt, limits(row))
            if pipeline.has_non_finished_requests():
                pipeline.step()
            now = time.perf_counter() - began
            for index, handle in list(running.items()):
                if first[index] is None and handle.can_read():
                    first[index] = now
                if handle.get_status() == genai.GenerationStatus.FINISHED:
                    ended[index] = now
                    del running[index]
        return max(ended), first, ended

    description = {"precision_hint": HINTS[sys.argv[2]]}
    serve({"peer": "openvino", "version": genai.__version__, "config": description}, run)


main()
