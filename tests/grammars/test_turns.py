"""Whose grammar is compiled next, and who has to make room: without threads, one decision after the other."""

import random
from collections import Counter

import pytest

from engine.errors import GrammarsBusyError
from engine.grammars import turns
from engine.grammars.source import GrammarKind, GrammarSource
from engine.grammars.turns import Turns, Work


def work(name: str, *tenant_ids: str) -> Work:
    made = Work(name.encode(), GrammarSource(GrammarKind.REGEX, name))
    made.num_askers.update(tenant_ids)
    return made


def enter(among: Turns, *names: str) -> None:
    """Each name begins with its tenant's."""
    for name in names:
        among.enter(work(name, name[0]), name[0])


def order(among: Turns) -> list[str]:
    """How those that wait are served from now on."""
    found = []
    while (served := among.take_next()) is not None:
        found.append(served.key.decode())
        among.end(served)
    return found


async def test_tenants_take_turns_however_much_each_of_them_asks_for():
    among = Turns()
    enter(among, "a0", "a1", "a2", "a3", "b0", "b1", "c0")
    assert order(among) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


async def test_who_was_served_last_is_served_after_those_who_come_later():
    among = Turns()
    enter(among, "a0", "a1", "a2")
    among.end(served := among.take_next())
    assert served.key == b"a0"
    enter(among, "b0")
    assert order(among) == ["b0", "a1", "a2"]


async def test_what_several_want_comes_when_the_first_of_them_has_a_turn():
    among = Turns()
    enter(among, "a0", "a1")
    among.enter(work("shared", "a", "b"), "a")
    assert order(among) == ["a0", "shared", "a1"]


async def test_nobody_has_every_turn_at_once_and_nobody_waits_for_long_turns_of_another():
    among = Turns()
    enter(among, "a0", "a1", "b0", "b1", "c0")
    first, second = among.take_next(), among.take_next()
    assert (first.key, second.key) == (b"a0", b"b0")
    assert among.take_next() is None  # all are taken
    among.end(second)
    assert among.take_next().key == b"c0"
    among.end(first)
    assert among.take_next().key == b"a1"


async def test_the_last_turn_is_left_for_others():
    among = Turns()
    enter(among, "a0", "a1")
    among.enter(work("shared", "a", "b"), "a")
    assert among.take_next().key == b"a0"
    assert among.take_next().key == b"shared"  # for b
    assert among.take_next() is None


async def test_a_tenant_that_is_alone_goes_on_one_by_one():
    among = Turns()
    enter(among, "a0", "a1")
    first = among.take_next()
    assert among.take_next() is None
    among.end(first)
    assert among.take_next().key == b"a1"


async def test_no_tenant_with_fewer_places_than_another_is_turned_away(monkeypatch):
    """A seeded storm of five tenants: who is refused has as many places as anybody, but for one."""
    monkeypatch.setattr(turns, "MAX_WAITING", 12)
    rng = random.Random(7)
    among, places, num_refused = Turns(), Counter[str](), 0
    for nth in range(2_000):
        if rng.random() < 0.2:
            served = among.take_next()
            if served is not None:
                places[served.sole_tenant] -= 1
                among.end(served)
            continue
        tenant = rng.choices("abcde", weights=(50, 20, 5, 1, 1))[0]
        try:
            displaced = among.enter(work(f"{nth}", tenant), tenant)
        except GrammarsBusyError:
            num_refused += 1
            assert max(places.values()) <= places[tenant] + 1
            continue
        places[tenant] += 1
        if displaced is not None:
            assert places[displaced.sole_tenant] == max(places.values())
            places[displaced.sole_tenant] -= 1
        assert places.total() <= 12
    assert num_refused > 100


async def test_what_gave_way_is_refused_to_all_who_wait_for_it(monkeypatch):
    monkeypatch.setattr(turns, "MAX_WAITING", 2)
    among, last = Turns(), work("a1", "a")
    enter(among, "a0")
    among.enter(last, "a")
    assert among.enter(work("b0", "b"), "b") is last
    with pytest.raises(GrammarsBusyError):
        await last.result()
    assert order(among) == ["a0", "b0"]


async def test_what_two_tenants_want_makes_room_for_nobody(monkeypatch):
    monkeypatch.setattr(turns, "MAX_WAITING", 3)
    among = Turns()
    enter(among, "a0", "a1")
    among.enter(work("shared", "a", "b"), "a")
    assert among.enter(work("c0", "c"), "c").key == b"a1"
    assert order(among) == ["a0", "shared", "c0"]
