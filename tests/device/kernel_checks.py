"""Every kernel against float64 on random data, with outputs that are poisoned before. Runs on CUDA, and on a CPU in
Triton's interpreter; `engine.kernels.triton` must be imported so that it does."""

from collections import abc
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from engine.kernels.triton import attention, cache, elementwise, sampling
from tests.device import exact
from tests.device.scene import Case, Mix, Scene, poisoned

ATTENTION_TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ROUNDING = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # two units in the last place

AROUND_BLOCKS: Mix = ((0, 1), (15, 1), (33, 4), (16, 1), (0, 17), (40, 1))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Check:
    """`error` is the largest, relative to values of about 1; NaN is one."""

    kernel: str
    case: str
    error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance


Job = abc.Callable[[], Check | list[Check]]


def attention_cases(mix: Mix = AROUND_BLOCKS) -> list[Case]:
    """Every head size, dtype and kind of grouping at least once, with blocks of odd sizes and with windows."""
    f32, f16, bf16 = DTYPES
    return [
        Case(4, 2, 64, 16, bf16, mix),
        Case(3, 1, 80, 5, f32, mix),
        Case(4, 4, 96, 16, f16, mix, window=11),
        Case(2, 1, 128, 1, bf16, mix),
        Case(8, 1, 256, 32, f32, mix, window=20),
        Case(9, 3, 64, 16, f32, mix, window=1),
        Case(2, 2, 16, 3, f16, mix),
    ]


def check_attention(case: Case, device: torch.device, *, num_padding: int = 0, num_splits: int | None = None) -> Check:
    """Rotation, the write into the cache and attention; no slot but the step's own is written."""
    scene = Scene(case, device, num_padding=num_padding)
    expected, cached = scene.expected()
    plan = scene.plan if num_splits is None else _with_splits(scene, num_splits)
    with poisoned():
        attended = attention.attend(scene.qkv, scene.rotation, scene.cached, plan, case.window)
    error = _error(attended.view(expected.shape), expected, relative=True)
    # NaN where nothing was written, there and here.
    stored = _error(scene.cached.double().nan_to_num(1e9), cached.double().nan_to_num(1e9))
    steps = "" if num_splits is None else f", {num_splits} splits"
    stored_tolerance = 4 * ROUNDING[case.dtype]  # of keys of up to 4
    tolerance = ATTENTION_TOLERANCE[case.dtype]
    return Check("attention", f"{case}{steps}", max(error, stored * tolerance / stored_tolerance), tolerance)


def check_elementwise(num_tokens: int, size: int, dtype: torch.dtype, device: torch.device) -> list[Check]:
    """Norm of the residual stream, norm of heads, the gate."""
    torch.manual_seed(num_tokens * size)
    case = f"{num_tokens} x {size}, {str(dtype).removeprefix('torch.')}"
    residual, delta = torch.randn(num_tokens, size, device=device), _randn((num_tokens, size), dtype, device)
    weight, added = torch.randn(size, device=device), residual.double() + delta.double()
    head_dim = min(size, 250)
    gate_up, heads = 8 * _randn((num_tokens, 2 * size), dtype, device), _randn((num_tokens, 5, head_dim), dtype, device)
    by_head = torch.randn(3, head_dim, device=device)
    normed_heads = heads.double()
    normed_heads[:, :3] = exact.rms_norm(heads[:, :3], by_head, 1e-5)
    with poisoned():
        normed = elementwise.add_rms_norm(residual, delta, weight, 1e-5)
        product = elementwise.silu_mul(gate_up)
        elementwise.norm_heads(heads, by_head, 1e-5)
    expected = exact.silu_mul(gate_up)
    tolerance = ROUNDING[dtype]
    return [
        Check("add to the residual stream", case, _error(residual, added), ROUNDING[torch.float32]),
        Check("norm", case, _error(normed, exact.rms_norm(added, weight, 1e-5), relative=True), tolerance),
        Check("silu * up", case, _error(product, expected, relative=True), tolerance),
        Check("norm of heads", case, _error(heads, normed_heads, relative=True), tolerance),
    ]


def check_copies(dtype: torch.dtype, device: torch.device, *, num_programs: int = 3) -> Check:
    """Blocks of both pools in both directions; the others keep what they had."""
    is_cuda = device.type == "cuda"
    shape = (2, 5, 2, 3, 10)
    on_device = _randn((11, *shape), dtype, device)
    on_host = _randn((7, *shape), dtype, torch.device("cpu"))
    on_host = on_host.pin_memory() if is_cuda else on_host
    from_ids, to_ids = torch.tensor([3, 0, 10, 7]), torch.tensor([6, 1, 0, 4])
    expected_host, expected_device = on_host.clone(), on_device.clone()
    expected_host[to_ids] = on_device.cpu()[from_ids]
    expected_device[[1, 2, 4, 5]] = expected_host[to_ids].to(device)
    back = torch.tensor([1, 2, 4, 5])
    ids = [of.pin_memory() if is_cuda else of for of in (from_ids, to_ids, back)]
    cache.copy_blocks(on_device, on_host, ids[0], ids[1], num_programs)
    cache.copy_blocks(on_host, on_device, ids[1], ids[2], num_programs)
    if is_cuda:
        torch.cuda.synchronize(device)
    is_same = torch.equal(on_host, expected_host) and torch.equal(on_device, expected_device)
    return Check("block gather and scatter", str(dtype).removeprefix("torch."), 0.0 if is_same else 1.0, 0.0)


def check_argmax(num_rows: int, size: int, device: torch.device) -> Check:
    """The first of the likeliest, and whether a row is finite."""
    torch.manual_seed(size)
    logits = torch.randn(num_rows, size, device=device).round(decimals=1)  # with ties
    bad = {0: torch.nan, 1: torch.inf, 2: -torch.inf}
    for row, value in bad.items():
        if row + 1 < num_rows:
            logits[row, size // 2] = value
    with poisoned():
        token_ids, is_finite = sampling.argmax_finite(logits)
    rows = logits.isfinite().all(-1)
    is_largest = logits.gather(1, token_ids[:, None])[:, 0] == logits.amax(-1)
    first = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)
    is_right = (
        torch.equal(is_finite, rows) and bool(is_largest[rows].all()) and torch.equal(token_ids[rows], first[rows])
    )
    is_token = bool(((token_ids >= 0) & (token_ids < size)).all())
    return Check("argmax and finite", f"{num_rows} x {size}", 0.0 if is_right and is_token else 1.0, 0.0)


def check_draw(num_rows: int, size: int, device: torch.device) -> Check:
    """A token is where the distribution function passes the draw; the error is by how much it does not."""
    torch.manual_seed(size)
    logits = 4 * torch.randn(num_rows, size, device=device)
    temperature = torch.linspace(0.05, 3, num_rows, device=device)
    smallest = torch.full((num_rows,), -torch.inf, device=device)
    smallest[::3] = logits[::3].topk(min(5, size)).values[:, -1]
    draws = torch.linspace(0, 1 - 2**-24, num_rows, device=device)
    with poisoned():
        token_ids = sampling.draw(logits, temperature, smallest, draws)
    weights = ((logits - logits.amax(-1, keepdim=True)).double() / temperature[:, None].double()).exp()
    weights[logits < smallest[:, None]] = 0
    shares = weights / weights.sum(-1, keepdim=True)
    passed = shares.cumsum(-1).gather(1, token_ids[:, None])[:, 0]
    share = shares.gather(1, token_ids[:, None])[:, 0]
    off = torch.maximum(draws.double() - passed, passed - share - draws.double()).clamp(min=0)
    off[share == 0] = 1.0
    return Check("draw", f"{num_rows} x {size}", float(off.max()), 1e-6)


def check_tiny_temperatures(device: torch.device) -> Check:
    """Next to nothing draws the likeliest; what is no number draws a token of the vocabulary."""
    temperature = torch.tensor([1e-37, 1.2e-38, 1e-40, 1e-45, 1.0], device=device)
    logits = torch.tensor([[1.0, 1.0 + 1e-6, -3e38]], device=device).repeat(5, 1)
    logits[4] = torch.nan
    nothing = torch.full((5,), -torch.inf, device=device)
    token_ids = sampling.draw(logits, temperature, nothing, torch.full((5,), 0.3, device=device)).tolist()
    is_right = token_ids[:4] == [1] * 4 and 0 <= token_ids[4] < 3
    return Check("draw", "temperatures near 0, NaN", 0.0 if is_right else 1.0, 0.0)


def small_jobs(device: torch.device) -> abc.Iterator[Job]:
    """Every kernel, at sizes that take seconds even in the interpreter."""
    for case in attention_cases():
        yield partial(check_attention, case, device)
    f32, _, _ = DTYPES
    split = Case(4, 2, 64, 16, f32, ((70, 1), (0, 1)))
    yield partial(check_attention, split, device, num_padding=3, num_splits=4)
    for dtype in DTYPES:
        yield partial(check_elementwise, 3, 33, dtype, device)
        yield partial(check_copies, dtype, device)
    yield partial(check_argmax, 5, 300, device)
    yield partial(check_draw, 6, 300, device)
    yield partial(check_draw, 4, 4097, device)
    yield partial(check_tiny_temperatures, device)


def large_jobs(device: torch.device) -> abc.Iterator[Job]:
    """Sizes as they are in use, for a card."""
    bf16 = torch.bfloat16
    long: Mix = ((0, 700), (1000, 1), (2047, 1), (511, 300), (4000, 1), (0, 1), (129, 128), (3000, 1))
    for case in attention_cases(long):
        yield partial(check_attention, case, device, num_padding=5)
    for case in (Case(32, 8, 128, 16, bf16, long, window=1024), Case(32, 1, 64, 16, bf16, long)):
        for num_splits in (1, 16):
            yield partial(check_attention, case, device, num_padding=5, num_splits=num_splits)
    for num_tokens, size in ((1, 576), (64, 4096), (777, 14336)):
        yield partial(check_elementwise, num_tokens, size, bf16, device)
    yield partial(check_argmax, 64, 128_256, device)
    yield partial(check_draw, 64, 128_256, device)


def _with_splits(scene: Scene, num_splits: int) -> attention.TritonChunks:
    return replace(scene.plan, num_splits=num_splits)


def _randn(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)


def _error(actual: Tensor, expected: Tensor, *, relative: bool = False) -> float:
    """The largest difference, of values above 1 as a part of them if `relative`; infinite where one is no number."""
    difference = (actual.double() - expected.double()).abs()
    if relative:
        difference /= expected.double().abs().clamp(min=1)
    return float(difference.nan_to_num(torch.inf).max()) if difference.numel() else 0.0
