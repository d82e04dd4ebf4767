"""What residents concede to a head, as the guard asks a policy about many of them at once."""

import pytest

from engine.core.guard import GuardedPolicy
from engine.core.policy import Concession
from policies.fcfs import Fcfs
from tests.builders import make_sequence

CLAIMANT = make_sequence(9)


class Answers(Fcfs):
    """Concedes what it was told to, by arrival; an exception is raised."""

    def __init__(self, *answers: object) -> None:
        super().__init__()
        self._answers = answers

    def concede(self, victim, claimant) -> Concession:
        answer = self._answers[victim.arrival_index]
        if isinstance(answer, Exception):
            raise answer
        return answer


def concessions_of(*answers: object) -> tuple[dict[int, Concession], str | None]:
    """By arrival index, and the fault."""
    guard = GuardedPolicy(Answers(*answers))
    owners = [make_sequence(index) for index in range(len(answers))]
    concessions = guard.concessions(owners, CLAIMANT)
    return {owner.arrival_index: concession for owner, concession in concessions.items()}, guard.fault


def test_those_that_concede_something_are_named_in_the_order_in_which_they_were_asked():
    given, fault = concessions_of(Concession.SWAP, Concession.NOTHING, Concession.ROW, Concession.ANYTHING)

    assert list(given.items()) == [(0, Concession.SWAP), (2, Concession.ROW), (3, Concession.ANYTHING)]
    assert fault is None


def test_an_answer_may_be_the_value_of_a_concession():
    given, fault = concessions_of("swap", "row")

    assert given == {0: Concession.SWAP, 1: Concession.ROW}
    assert fault is None


@pytest.mark.parametrize("answer", [RuntimeError("lost my mind"), "everything", None])
def test_after_an_answer_that_is_none_nobody_else_is_asked_and_what_was_conceded_counts(answer: object):
    given, fault = concessions_of(Concession.ANYTHING, answer, Concession.ANYTHING)

    assert given == {0: Concession.ANYTHING}
    assert "Answers" in fault


def test_the_first_to_concede_is_the_first_that_gives_up_more_than_nothing():
    guard = GuardedPolicy(Answers(Concession.NOTHING, "nothing", "row", RuntimeError("nobody asks the fourth")))
    owners = [make_sequence(index) for index in range(4)]

    assert guard.first_to_concede(owners, CLAIMANT) is owners[2]
    assert guard.fault is None
