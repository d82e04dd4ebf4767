"""How alike what several got is."""

import pytest

from engine.core.evenness import jain_index


def test_jain_index_of_equals_is_one_and_of_one_hog_is_its_share():
    assert jain_index([0.5, 0.5]) == pytest.approx(1)
    assert jain_index([1.0, 0, 0, 0]) == pytest.approx(0.25)


@pytest.mark.parametrize("nothing", [[], [0.0, 0.0]])
def test_where_nobody_got_anything_there_is_no_index(nothing: list[float]):
    assert jain_index(nothing) is None
