"""Whose turn it is among the prompts of a plan."""

from engine.core.admission import Turns
from tests.builders import make_sequence


class Desk:
    """Ranks that a test sets, and how often they were asked for."""

    def __init__(self, *ranks: float) -> None:
        self.ranks = list(ranks)
        self.num_asked = 0
        self.moment = (0, 0)
        self.seqs = [make_sequence(index) for index in range(len(ranks))]
        self.turns = Turns(self.rank, lambda: self.moment, self.seqs)

    def rank(self, seq) -> tuple[tuple[float, ...], int]:
        self.num_asked += 1
        return (self.ranks[seq.arrival_index],), seq.arrival_index

    def first(self) -> int | None:
        first = self.turns.first()
        return None if first is None else first[2].arrival_index


def test_while_nothing_happens_each_prompt_is_ranked_once():
    desk = Desk(3, 1, 2)
    order = []
    while (index := desk.first()) is not None:
        order.append(index)
        desk.turns.end_turn(goes_on=False)

    assert order == [1, 2, 0]
    assert desk.num_asked == 3


def test_a_rank_that_has_risen_is_put_right_when_it_comes_first():
    desk = Desk(3, 1, 2)
    desk.ranks[1], desk.moment = 5, (0, 1)

    assert desk.first() == 2
    desk.turns.end_turn(goes_on=False)
    assert desk.first() == 0
    desk.turns.end_turn(goes_on=False)
    assert desk.first() == 1


def test_whoever_had_fewer_turns_comes_first():
    desk = Desk(1, 2)
    desk.turns.end_turn(goes_on=True)
    desk.moment = (0, 1)

    assert desk.first() == 1
    desk.turns.end_turn(goes_on=True)
    desk.ranks.append(0)
    desk.turns.put(make_sequence(2))
    assert desk.first() == 2
