from hypothesis import given
from hypothesis import strategies as st

from engine.runner.attention_planner import group_chunks

chunks = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 4000)), min_size=1, max_size=40)


@given(chunks, st.integers(1, 8000))
def test_every_chunk_is_in_exactly_one_group_of_bounded_size(sizes, max_keys):
    num_queries = [queries for queries, _ in sizes]
    num_keys = [queries + past for queries, past in sizes]
    groups = group_chunks(num_queries, num_keys, max_keys)
    assert sorted(chunk for group in groups for chunk in group) == list(range(len(sizes)))
    for group in groups:
        assert group == sorted(group)
        assert len(group) == 1 or len(group) * max(num_keys[chunk] for chunk in group) <= max_keys


def test_decodes_of_similar_length_share_a_call():
    assert group_chunks([1] * 4, [100, 130, 97, 128], 8192) == [[0, 1, 2, 3]]


def test_long_context_is_not_padded_around_short_ones():
    assert group_chunks([1] * 4, [16, 4000, 32, 16], 100_000) == [[1], [0, 2, 3]]


def test_long_prompt_is_not_padded_around_decodes():
    assert group_chunks([1, 1, 200], [300, 310, 512], 100_000) == [[2], [0, 1]]
