"""Items by rank, compared with a sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from engine.core.ranking import MAX_OUTDATED, Ranking

OPERATIONS = st.lists(st.tuples(st.sampled_from("pd"), st.integers(0, 7), st.integers(0, 20)), max_size=200)


@given(OPERATIONS)
def test_the_first_item_is_the_one_of_lowest_rank(operations):
    ranking: Ranking[int] = Ranking()
    ranks: dict[int, tuple[float, ...]] = {}
    for operation, item, rank in operations:
        if operation == "p":
            ranking.put(item, (float(rank), item))
            ranks[item] = (float(rank), item)
        else:
            ranking.discard(item)
            ranks.pop(item, None)

        assert ranking.first() == min(ranks, key=ranks.__getitem__, default=None)
        assert len(ranking) == len(ranks)
        assert all((item in ranking) == (item in ranks) for item in range(8))
        assert all(ranking.rank_of(item) == rank for item, rank in ranks.items())


def test_of_two_equal_ranks_the_one_put_first_comes_first():
    ranking: Ranking[str] = Ranking()
    for item in "ba":
        ranking.put(item, (1.0,))

    assert ranking.first() == "b"


def test_memory_stays_proportional_to_the_items():
    ranking: Ranking[int] = Ranking()
    ranking.put(-1, (-1.0,))  # stays first, so that nothing outdated ever surfaces
    for number in range(10_000):
        ranking.put(number, (float(number),))
        ranking.discard(number)

    assert len(ranking._heap) <= 2 * len(ranking) + MAX_OUTDATED
