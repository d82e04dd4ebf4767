"""A quick enumeration behaves like any other."""

import copy
import pickle
import sys
from enum import Enum

import pytest

from engine.core.quick_enum import quick
from engine.core.types import SequenceStatus


@quick
class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def test_members_are_found_by_name_by_value_and_in_order():
    assert Colour("red") is Colour.RED is Colour["RED"]
    assert [colour.name for colour in Colour] == ["RED", "BLUE"]


def test_members_stay_the_same_when_they_are_copied_or_pickled():
    assert copy.deepcopy(SequenceStatus.RUNNING) is SequenceStatus.RUNNING
    assert pickle.loads(pickle.dumps(SequenceStatus.RUNNING)) is SequenceStatus.RUNNING


def test_members_are_keys_of_which_each_is_its_own():
    assert {Colour.RED: 1, Colour.BLUE: 2}[Colour.BLUE] == 2
    assert Colour.RED != Colour.BLUE


def test_members_are_hashed_and_found_without_a_call_of_python_code():
    frames = []
    sys.setprofile(lambda frame, event, _: frames.append(frame) if event == "call" else None)
    try:
        {Colour.RED: 1}[Colour.RED]
    finally:
        sys.setprofile(None)
    assert not frames


def test_unknown_values_are_refused():
    with pytest.raises(ValueError, match="green"):
        Colour("green")
