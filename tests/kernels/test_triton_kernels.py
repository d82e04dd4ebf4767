"""The Triton kernels in Triton's interpreter, against float64 arithmetic, over odd sizes."""

import itertools

import pytest
import torch

from tests.kernels.interpreted import attention, cache, elementwise, sampling  # isort: skip  # before what uses them
from engine.kernels import reference
from engine.kernels.triton.launches import Launch, Launches
from tests.device import kernel_checks
from tests.device.kernel_checks import AROUND_BLOCKS, DTYPES, attention_cases
from tests.device.scene import Case, Scene
from tests.torch_threads import one_thread  # noqa: F401  a fixture

# Infinities are subtracted and poison is multiplied on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CPU = torch.device("cpu")
HEADS = [(1, 1), (4, 4), (4, 2), (9, 3), (8, 1)]
HEAD_DIMS = [16, 64, 80, 96, 128, 256]
BLOCK_SIZES = [1, 5, 16, 32]
# The interpreter takes a second for each: those that have most in common with others are left to the long run.
CASES = [
    pytest.param(case, id=str(case), marks=() if number in {0, 1, 2, 4} else pytest.mark.slow)
    for number, case in enumerate(attention_cases())
]


def holds(*checks):
    assert all(check.holds for check in checks), checks


@pytest.mark.parametrize("case", CASES)
def test_attention_sees_its_own_keys_up_to_its_own_and_leaves_all_other_blocks_alone(case):
    holds(kernel_checks.check_attention(case, CPU))


@pytest.mark.parametrize("num_splits", [1, 4])
def test_padding_and_splits_without_keys_leave_what_the_others_get(num_splits):
    case = Case(4, 2, 64, 16, torch.float32, ((70, 1), (0, 1)))
    holds(kernel_checks.check_attention(case, CPU, num_padding=3, num_splits=num_splits))


def test_attention_is_the_references():
    mix = ((15, 1), (14, 4))
    scene = Scene(Case(4, 2, 16, 16, torch.float32, mix, window=9), CPU)
    attended = attention.attend(scene.qkv, scene.rotation, scene.cached, scene.plan, 9)
    queries = reference.rope(scene.qkv[:, :4], scene.positions, scene.frequencies)
    expected = reference.paged_attention(queries, scene.cached, scene.block_ids, list(mix), 9)
    torch.testing.assert_close(attended, expected.flatten(1), atol=1e-5, rtol=0)


def test_a_sequence_that_is_no_number_leaves_the_others_as_they_are():
    case = Case(4, 2, 16, 16, torch.float32, ((20, 1), (20, 1), (3, 9), (1, 2)))
    attended = []
    for is_bad in (False, True):
        scene = Scene(case, CPU)
        if is_bad:
            scene.cached[scene.block_ids[1][0], 5] = torch.nan
            scene.cached[scene.block_ids[3][0], 0] = torch.nan
        attended.append(attention.attend(scene.qkv, scene.rotation, scene.cached, scene.plan))
    assert attended[1][[1, 11, 12]].isnan().all()
    others = [0, *range(2, 11)]
    assert torch.equal(attended[1][others], attended[0][others])


def test_a_tile_of_another_size_gives_the_same():
    case = Case(6, 2, 16, 4, torch.float32, ((5, 40), (70, 1)))
    scene = Scene(case, CPU)
    expected, _ = scene.expected()
    launch = Launch(rows=16, keys=16, num_warps=4, num_stages=1)
    scene.planner.launches = Launches(launch, launch)
    plan = scene.plan_again()
    assert plan.tiles.shape[1] == 8  # five queries of three heads each in 16 rows
    attended = attention.attend(scene.qkv, scene.rotation, scene.cached, plan)
    torch.testing.assert_close(attended.double(), expected.flatten(1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_norms_and_the_gate_in_one_pass(num_tokens, dtype):
    holds(*kernel_checks.check_elementwise(num_tokens, 33, dtype, CPU))


def test_gates_that_overflow_and_steps_without_a_token():
    gates = torch.tensor([[-1e4, 1e30, -200.0, 0.0]])
    product = elementwise.silu_mul(torch.cat((gates, torch.ones(1, 4)), dim=1))
    torch.testing.assert_close(product, torch.tensor([[0.0, 1e30, 0.0, 0.0]]))
    assert elementwise.silu_mul(torch.zeros(0, 8)).shape == (0, 4)
    assert elementwise.add_rms_norm(torch.zeros(0, 8), torch.zeros(0, 8), torch.ones(8), 1e-5).shape == (0, 8)


def test_what_is_not_contiguous_is_refused():
    with pytest.raises(ValueError, match="contiguous"):
        elementwise.silu_mul(torch.zeros(8, 4).T)
    with pytest.raises(ValueError, match="contiguous"):
        elementwise.add_rms_norm(torch.zeros(8, 4).T, torch.zeros(4, 8), torch.ones(8), 1e-5)
    slots = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="contiguous"):
        cache.rotate_and_store(
            torch.zeros(3, 16, 4).transpose(1, 2), (torch.zeros(3, 8),) * 2, torch.zeros(2, 4, 2, 1, 16), slots
        )


@pytest.mark.parametrize("num_programs", [1, 3, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_are_gathered_and_scattered_between_pools(dtype, num_programs):
    holds(kernel_checks.check_copies(dtype, CPU, num_programs=num_programs))


@pytest.mark.parametrize("size", [1, 300, 4097])
def test_the_first_of_the_likeliest_and_whether_a_row_is_finite(size):
    holds(kernel_checks.check_argmax(5, size, CPU))


@pytest.mark.parametrize("size", [1, 300, 4097])
def test_a_draw_is_where_the_distribution_function_passes_it(size):
    holds(kernel_checks.check_draw(6, size, CPU))


def test_temperatures_near_zero_and_logits_that_are_no_numbers():
    holds(kernel_checks.check_tiny_temperatures(CPU))


@pytest.mark.parametrize("drawn", [0.0, 1 - 2.0**-24])
def test_the_first_and_the_last_draw_find_a_token_that_has_weight(drawn):
    logits = torch.full((1, 2000), -1e30)
    logits[0, [700, 1400]] = 1.0
    [token_id] = sampling.draw(logits, torch.ones(1), torch.tensor([-torch.inf]), torch.full((1,), drawn)).tolist()
    assert token_id == (700 if drawn == 0 else 1400)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("heads", HEADS)
def test_every_shape_with_every_block_size_dtype_and_window(heads, head_dim):
    for block_size, dtype, window in itertools.product(BLOCK_SIZES, DTYPES, [None, 1, 17]):
        case = Case(*heads, head_dim, block_size, dtype, AROUND_BLOCKS, window)
        holds(kernel_checks.check_attention(case, CPU, num_padding=2, num_splits=1 + block_size % 4))
