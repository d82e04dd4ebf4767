"""Threads that share the work of a kernel: none waits for what another failed at."""

import threading

import numpy as np
import pytest
from numba import njit

from engine.kernels.cpu.shared_work import counters, done, run_together, take, wait

NUM_ITEMS = 8
TOO_MUCH = 1 << 50  # numbers: more than a process has addresses for


def fill(phases, sizes, filled):
    """Two phases; for each item of the first there is memory of its size."""
    item = take(phases, 0, 1)
    while item < NUM_ITEMS:
        scratch = np.empty(sizes[item], np.float32)
        scratch[0] = 1
        filled[item] = scratch[0]
        done(phases, 0, 1)
        item = take(phases, 0, 1)
    wait(phases, 0, NUM_ITEMS)
    item = take(phases, 1, 1)
    while item < NUM_ITEMS:
        filled[item] += 1
        done(phases, 1, 1)
        item = take(phases, 1, 1)
    wait(phases, 1, NUM_ITEMS)


@pytest.fixture(scope="module")
def kernel():
    return njit(nogil=True)(fill)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_kernel_without_memory_for_an_item_fails_and_the_next_one_does_not(kernel, num_threads):
    sizes, filled = np.full(NUM_ITEMS, 8), np.zeros(NUM_ITEMS)
    sizes[3] = TOO_MUCH
    with pytest.raises(MemoryError):
        run_together(num_threads, kernel, counters(2), sizes, filled)
    sizes[3] = 8
    run_together(num_threads, kernel, counters(2), sizes, filled)
    assert filled.tolist() == [2] * NUM_ITEMS


@pytest.mark.parametrize("who_fails", ["caller", "helper"])
def test_an_error_is_raised_once_the_other_thread_has_left_what_it_waited_for(who_fails):
    caller, both_began, left = threading.current_thread(), threading.Barrier(2), []
    wait_for_one = njit(nogil=True)(lambda phases: wait(phases, 0, 1))
    wait_for_one(np.ones((1, 16), np.int64))  # compiled

    def kernel(phases):
        who = "caller" if threading.current_thread() is caller else "helper"
        both_began.wait()
        if who == who_fails:
            raise ZeroDivisionError(who)
        wait_for_one(phases)
        left.append(who)

    with pytest.raises(ZeroDivisionError, match=who_fails):
        run_together(2, kernel, counters(1))
    assert left == [{"caller": "helper", "helper": "caller"}[who_fails]]


def test_a_helper_that_is_busy_is_not_waited_for_and_comes_again():
    all_inside, go_on, who = threading.Barrier(3), threading.Event(), []

    def occupy(phases):
        all_inside.wait()
        go_on.wait()

    def note(phases):
        who.append(threading.current_thread())

    other = threading.Thread(target=run_together, args=(2, occupy, counters(1)))
    other.start()
    all_inside.wait()
    run_together(2, note, counters(1))
    go_on.set()
    other.join()
    both_inside = threading.Barrier(2)
    run_together(2, lambda phases: both_inside.wait(), counters(1))
    assert who == [threading.current_thread()]
