"""What a search may use: the tokens of all its beams are granted together, and all of them have to fit the pool."""

import pytest

from engine.core.errors import RequestTooLargeError
from engine.core.events import Admitted, Preempted
from tests.core.searching import assert_found, make_search
from tests.core.test_beam_forks import make_driver


def test_granted_tokens_are_those_of_all_beams_and_never_exceeded():
    driver = make_driver()
    request = make_search("g", width=4, max_output_tokens=6, granted_output_tokens=10)
    driver.add(request)
    driver.run()
    group = driver.scheduler.lifecycle.by_generation["g"].beam.group
    assert group.num_charged == 1 + 4 + 4  # and 4 more are too many
    assert [type(event) for event in driver.events] == [Admitted, Preempted]
    driver.scheduler.grant("g", 13, driver.now)
    driver.run()
    assert group.num_charged == 13
    driver.scheduler.grant("g", 99, driver.now)
    driver.run()
    assert_found(driver, request)


def test_blocked_reader_holds_all_beams():
    driver = make_driver()
    request = make_search("g", width=4, max_output_tokens=6)
    driver.add(request)
    driver.step()
    driver.step()
    driver.scheduler.set_reader_blocked("g", blocked=True, now=driver.now)
    assert driver.plan() is None
    driver.scheduler.set_reader_blocked("g", blocked=False, now=driver.now)
    driver.run()
    assert_found(driver, request)


@pytest.mark.parametrize(
    ("prompt", "num_output", "width", "num_blocks"),
    [(12, 4, 3, 3 + 3 * 1), (11, 5, 3, 2 + 3 * 2), (3, 9, 4, 4 * 3), (12, 1, 16, 4)],
)
def test_only_what_fits_the_pool_with_all_its_beams_is_taken(prompt, num_output, width, num_blocks):
    request = make_search("g", width=width, prompt=prompt, max_output_tokens=num_output)
    driver = make_driver(num_device_blocks=num_blocks)
    driver.add(request)
    driver.run()
    assert_found(driver, request)
    with pytest.raises(RequestTooLargeError):
        make_driver(num_device_blocks=num_blocks - 1).add(request)


def test_each_beam_has_to_fit_the_context():
    with pytest.raises(RequestTooLargeError):
        make_driver(max_model_len=15).add(make_search("g", prompt=12, max_output_tokens=4))
    make_driver(max_model_len=16).add(make_search("g", prompt=12, max_output_tokens=4))
