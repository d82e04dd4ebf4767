"""What each tenant was served, in little memory: the same figures as in a mapping."""

import pytest

from gateway.console.overview.served_history import ServedByTenant
from gateway.served import Served

SERVED = {("o", f"t{number:03}"): Served(number, 2 * number, 5 * number) for number in range(1, 200)}


def test_it_is_the_mapping_that_it_was_made_of():
    kept = ServedByTenant(SERVED)

    assert dict(kept) == SERVED
    assert dict(kept.works()) == {path: served.work for path, served in SERVED.items()}
    for missing in (("o", "t000"), ("o", "t0015"), ("z", "z"), ()):
        with pytest.raises(KeyError):
            kept[missing]


@pytest.mark.parametrize("num_asked", [0, 3, 150])
def test_of_those_that_are_asked_for_the_ones_that_were_served_are_told(num_asked: int):
    asked = {*list(SERVED)[:num_asked], ("o", "nobody")}

    assert ServedByTenant(SERVED).of(asked) == {path: SERVED[path] for path in list(SERVED)[:num_asked]}


def test_names_are_shared_with_the_moment_before():
    before = ServedByTenant(SERVED)
    again = ServedByTenant(
        {tuple(part[:1] + part[1:] for part in path): served for path, served in SERVED.items()}, before
    )
    fewer = ServedByTenant(
        {tuple(part[:1] + part[1:] for part in path): SERVED[path] for path in list(SERVED)[:5]}, before
    )

    assert again.paths is before.paths
    assert all(one is other for one, other in zip(fewer.paths, before.paths, strict=False))
