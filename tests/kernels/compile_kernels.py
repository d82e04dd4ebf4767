"""Compiles what the launchers launch for cards that are not there: `python -m tests.kernels.compile_kernels 80 90`.

A process of its own, because one that interprets kernels compiles none. The launchers are called with tensors on the
CPU, and each launch is compiled instead of run, with the types, constants and options that it came with. Prints a JSON
list: kernel, case, arch, cubin_bytes, shared_bytes, registers, and stack_bytes, which is where spilled registers go.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import abc
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from engine.kernels.triton import attention, cache, elementwise, sampling
from engine.kernels.triton.launches import default_launches
from tests.device.scene import Case, Scene

TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}
MIX = ((70, 1), (3, 20))
CPU = torch.device("cpu")


@dataclass(slots=True)
class Launched:
    """The launches of one case, in order."""

    kernels: list[tuple[JITFunction, dict[str, Any], dict[str, Any]]] = field(default_factory=list)

    def record(self, kernel: JITFunction, *args: object, grid: object, warmup: bool, **kwargs: object) -> None:
        bound = dict(zip(kernel.arg_names, args, strict=False))
        bound |= {name: kwargs.pop(name) for name in kernel.arg_names if name in kwargs}
        self.kernels.append((kernel, bound, kwargs))


def launched(work: abc.Callable[[], object]) -> Launched:
    """What `work` would launch."""
    found = Launched()
    with mock.patch.object(JITFunction, "run", lambda kernel, *args, **kwargs: found.record(kernel, *args, **kwargs)):
        work()
    return found


def source_of(kernel: JITFunction, bound: abc.Mapping[str, Any]) -> ASTSource:
    """The kernel as Triton specializes it for these arguments: 1 is a constant, multiples of 16 are known as such."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], object] = {}
    attributes: dict[tuple[int, ...], list[list[object]]] = {}
    for index, parameter in enumerate(kernel.params):
        value = bound[parameter.name]
        is_special = not parameter.do_not_specialize
        if parameter.is_constexpr or (isinstance(value, int) and value == 1 and is_special):
            signature[parameter.name] = "constexpr"
            constants[index,] = value
        elif isinstance(value, Tensor):
            signature[parameter.name] = f"*{TYPES[value.dtype]}"
            attributes[index,] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        else:
            signature[parameter.name] = "i32"
            if value % 16 == 0 and is_special:
                attributes[index,] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, attributes)


def attention_launches(case: Case) -> abc.Callable[[], object]:
    scene = Scene(case, CPU)
    plan = replace(scene.plan, launches=default_launches(scene.plan.shape))

    def work() -> None:
        for num_splits in (1, 4):
            split = replace(plan, num_splits=num_splits)
            attention.attend(scene.qkv, scene.rotation, scene.cached, split, case.window)

    return work


def other_launches(dtype: torch.dtype) -> None:
    """Every kernel besides attention, at the sizes of a small model."""
    delta, rows = torch.zeros(4, 576, dtype=dtype), torch.zeros(2, 5000)
    elementwise.add_rms_norm(torch.zeros(4, 576), delta, torch.zeros(576), 1e-5)
    elementwise.silu_mul(torch.zeros(4, 3072, dtype=dtype))
    elementwise.norm_heads(torch.zeros(4, 5, 64, dtype=dtype), torch.zeros(4, 64), 1e-5)
    ids = torch.zeros(8, dtype=torch.int64)
    cache.copy_blocks(torch.zeros(9, 4096, dtype=dtype), torch.zeros(9, 4096, dtype=dtype), ids, ids, 16)
    sampling.argmax_finite(rows)
    sampling.draw(rows, rows[:, 0], rows[:, 0], rows[:, 0])


def cases(*, is_whole: bool) -> abc.Iterator[tuple[str, abc.Callable[[], object]]]:
    bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    yield "bfloat16", lambda: other_launches(bf16)
    shapes = [Case(9, 3, 64, 16, bf16, MIX)]
    if is_whole:
        yield "float32", lambda: other_launches(f32)
        yield "float16", lambda: other_launches(f16)
        shapes += [
            Case(num_heads, 2, head_dim, 16, dtype, MIX, window)
            for num_heads in (2, 8, 16)
            for head_dim in (64, 80, 96, 128, 256)
            for dtype in (bf16, f16, f32)
            for window in ((None, 9) if num_heads == 8 else (None,))
        ]
    for case in shapes:
        yield str(case), attention_launches(case)


def compiled(kernel: JITFunction, source: ASTSource, arch: int, options: abc.Mapping[str, Any]) -> dict[str, Any]:
    """The compiled form's size and what it takes of a processor."""
    binary = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=dict(options))
    cubin = binary.asm["cubin"]
    told = {"kernel": kernel.__name__, "arch": arch, "cubin_bytes": len(cubin), **resources(cubin)}
    return told | {"shared_bytes": binary.metadata.shared}


def resources(cubin: bytes) -> dict[str, int]:
    """registers and stack_bytes, read from the compiled form."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = {name: int(number) for name, number in re.findall(r"(REG|STACK):(\d+)", told)}
    return {"registers": found["REG"], "stack_bytes": found["STACK"]}


def main(arguments: abc.Sequence[str]) -> None:
    results, seen = [], set()
    for case, work in cases(is_whole="--whole" in arguments):
        for kernel, bound, options in launched(work).kernels:
            source = source_of(kernel, bound)
            for arch in (int(argument) for argument in arguments if argument.isdigit()):
                key = (arch, source.hash(), tuple(sorted(options.items())))
                if key not in seen:
                    seen.add(key)
                    results.append({"case": case, **compiled(kernel, source, arch, options)})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
