"""Beam search as rounds of candidates: what is ranked, what is finished, and when it is over."""

import pytest

from engine.core.beams import BeamSearch, Hypothesis, Tip
from engine.core.plan import Candidate
from engine.core.types import BeamSearchParams, FinishReason

STOP = 9


def make_search(width=2, max_output_tokens=5, **fields) -> BeamSearch:
    return BeamSearch(BeamSearchParams(width, **fields), max_output_tokens, frozenset({STOP}))


def tip(total, *pairs) -> Tip:
    return Tip(total, [Candidate(*pair) for pair in pairs])


def play(search, *tips):
    """One round; the finished hypotheses have the token of their last round only."""
    round_ = search.rank(tips)
    search.keep(
        round_,
        [Hypothesis(e.score, e.child.cumulative_logprob, (e.child.token_id,), e.reason) for e in round_.endings],
    )
    return round_


def test_the_likeliest_children_of_all_beams_go_on():
    search = make_search()
    (first, second) = play(search, tip(-1.0, (1, -1.0), (2, -3.0)), tip(-1.5, (3, -1.0), (4, -1.2))).children
    assert (first.parent, first.token_id, first.cumulative_logprob) == (0, 1, -2.0)
    assert (second.parent, second.candidate, second.token_id) == (1, 0, 3)


def test_an_end_below_the_first_ones_finishes_nothing_and_goes_nowhere():
    search = make_search()
    round_ = play(search, tip(0.0, (1, -1.0), (2, -1.5), (STOP, -2.0), (3, -3.0)))
    assert [child.token_id for child in round_.children] == [1, 2]
    assert not round_.endings


def test_an_end_among_the_first_ones_is_a_hypothesis_and_leaves_the_beams_full():
    search = make_search()
    round_ = play(search, tip(0.0, (STOP, -1.0), (1, -1.5), (2, -2.0)))
    assert [child.token_id for child in round_.children] == [1, 2]
    assert [(ending.score, ending.reason) for ending in round_.endings] == [(-1.0, FinishReason.STOP)]
    assert not search.is_over


def test_a_beam_offers_so_many_that_enough_of_them_go_on():
    assert make_search(width=3).num_candidates == 4


@pytest.mark.parametrize(("penalty", "score"), [(0.0, -6.0), (1.0, -3.0), (2.0, -1.5), (-1.0, -12.0)])
def test_score_is_the_sum_over_the_length_to_the_penalty(penalty, score):
    search = make_search(length_penalty=penalty)
    play(search, tip(0.0, (1, -4.0), (2, -4.1)))
    assert play(search, tip(-4.0, (STOP, -2.0), (1, -9.0), (2, -9.0))).endings[0].score == score


def test_search_ends_when_no_beam_can_beat_the_worst_of_enough_hypotheses():
    search = make_search(max_output_tokens=50)
    play(search, tip(0.0, (STOP, -1.0), (1, -1.1), (2, -5.0)))
    play(search, tip(-1.1, (STOP, -0.1), (3, -0.2), (4, -0.3)), tip(-5.0, (1, -1.0), (2, -1.0)))
    assert [hypothesis.score for hypothesis in search.finished] == pytest.approx([-0.6, -1.0])
    assert not search.is_over  # -1.3 / 2 is better than -1
    play(search, tip(-1.3, (3, -3.0), (4, -3.0)), tip(-1.4, (1, -3.0), (2, -3.0)))
    assert search.is_over


def test_early_stopping_ends_the_search_with_enough_hypotheses():
    search = make_search(early_stopping=True, max_output_tokens=50)
    play(search, tip(0.0, (STOP, -1.0), (1, -1.1), (2, -5.0)))
    assert not search.is_over
    play(search, tip(-1.1, (STOP, -0.1), (3, -0.2), (4, -0.3)), tip(-5.0, (1, -1.0), (2, -1.0)))
    assert search.is_over


def test_full_length_ends_the_search_with_the_likeliest_beams():
    search = make_search(max_output_tokens=2, num_returned=2)
    play(search, tip(0.0, (1, -1.0), (2, -2.0)))
    round_ = play(search, tip(-1.0, (1, -1.0), (STOP, -2.0)), tip(-2.0, (1, -0.5), (2, -9.0)))
    assert search.is_over
    assert not round_.children
    assert [(e.child.parent, e.child.token_id, e.reason) for e in round_.endings] == [
        (0, 1, FinishReason.LENGTH),
        (1, 1, FinishReason.LENGTH),
    ]


def test_better_hypotheses_take_the_place_of_worse_ones():
    search = make_search(max_output_tokens=50, length_penalty=0.0)
    play(search, tip(0.0, (STOP, -4.0), (1, -4.1), (2, -4.2)))
    play(search, tip(-4.1, (STOP, -0.5), (1, -0.1), (2, -5.0)), tip(-4.2, (1, -0.1), (2, -6.0)))
    assert [hypothesis.score for hypothesis in search.finished] == [-4.0]  # the end ranked third
    play(search, tip(-4.2, (STOP, -0.1), (1, -5.0), (2, -5.0)), tip(-4.3, (STOP, -0.1), (1, -5.0), (2, -5.0)))
    assert [hypothesis.score for hypothesis in search.finished] == pytest.approx([-4.0, -4.3])


def test_search_without_any_token_that_may_follow_is_over():
    search = make_search()
    play(search, tip(0.0))
    assert search.is_over
    assert not search.finished


@pytest.mark.parametrize(("width", "num_returned"), [(1, 1), (2, 0), (2, 3)])
def test_impossible_searches_are_refused(width, num_returned):
    with pytest.raises(ValueError, match="beams"):
        BeamSearchParams(width, num_returned)
