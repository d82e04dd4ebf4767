"""Which block begins most like given tokens: the answer of a tree is that of looking at all of them."""

import random
from collections import abc

import pytest

from engine.core.block_names import BlockName
from engine.core.continuations import Continuations
from tests.core.test_cost import count_calls

HERE, ELSEWHERE = BlockName(b"here"), BlockName(b"elsewhere")
Tokens = tuple[int, ...]


def num_common(one: Tokens, other: Tokens) -> int:
    return next(
        (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(min(one, other, key=len))
    )


def make(*texts: Tokens) -> Continuations[int]:
    """Blocks 0, 1, 2, … of these tokens."""
    tree: Continuations[int] = Continuations()
    for block_id, text in enumerate(texts):
        tree.put(HERE, text, block_id)
    return tree


class TestMostCommon:
    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            ((1, 2, 3), (0, 3, False)),
            ((1, 2, 3, 4), (0, 3, False)),
            ((1, 2), (0, 2, True)),
            ((1, 7, 3), (1, 2, True)),
            ((1, 9), (0, 1, True)),
            ((9,), (0, 0, True)),
            ((), (0, 0, True)),
        ],
    )
    def test_is_the_block_with_the_longest_beginning(self, wanted: Tokens, found: tuple[int, int, bool]):
        assert make((1, 2, 3), (1, 7, 8), (5,)).most_common(HERE, wanted) == found

    def test_is_none_behind_a_block_that_nothing_follows(self):
        assert make((1, 2, 3)).most_common(ELSEWHERE, (1, 2, 3)) is None

    def test_is_the_first_of_several_that_came(self):
        tree = make((1, 2, 3), (1, 2, 3), (1, 2, 4))
        assert tree.most_common(HERE, (1, 2)).block_id == 0

        tree.discard(HERE, (1, 2, 3), 0)
        assert tree.most_common(HERE, (1, 2)).block_id == 1

    def test_is_found_in_what_is_no_list(self):
        tree: Continuations[int] = Continuations()
        tree.put(HERE, tuple(range(3, 9)), 4)

        assert tree.most_common(HERE, range(3, 7)) == (4, 4, True)

    def test_is_nothing_once_all_is_gone(self):
        tree = make((1, 2), (1, 3))
        tree.discard(HERE, (1, 2), 0)
        tree.discard(HERE, (1, 3), 1)
        assert tree.most_common(HERE, (1,)) is None

        tree.put(HERE, (1, 2), 0)
        tree.clear()
        assert tree.most_common(HERE, (1,)) is None


def test_to_find_one_costs_the_same_however_many_there_are():
    def cost(num: int) -> int:
        tree = make(*[(n // 1_000, n // 100 % 10, n // 10 % 10, n % 10, 3) for n in range(num)])
        return count_calls(lambda: tree.most_common(HERE, (0, 0, 1, 5, 8)))

    assert cost(10_000) <= 2 * cost(100)


def story(seed: int) -> abc.Iterator[tuple[Continuations[int], dict[int, Tokens], Tokens]]:
    """A tree of short texts over three tokens that come and go, what is in it, and what is asked for."""
    source, tree, inside = random.Random(seed), Continuations[int](), dict[int, Tokens]()
    for block_id in range(200):
        if inside and source.random() < 0.4:
            gone = source.choice(list(inside))
            tree.discard(HERE, inside.pop(gone), gone)
        else:
            inside[block_id] = tuple(source.randrange(3) for _ in range(source.randint(1, 5)))
            tree.put(HERE, inside[block_id], block_id)
        yield tree, inside, tuple(source.randrange(3) for _ in range(source.randint(0, 5)))


@pytest.mark.parametrize("seed", range(5))
def test_a_tree_finds_what_looking_at_all_finds(seed: int):
    for tree, inside, wanted in story(seed):
        found = tree.most_common(HERE, wanted)
        if not inside:
            assert found is None
            continue
        lengths = {block_id: num_common(text, wanted) for block_id, text in inside.items()}
        assert lengths[found.block_id] == found.num_tokens == max(lengths.values())
        assert found.goes_on == any(lengths[each] == found.num_tokens < len(text) for each, text in inside.items())


@pytest.mark.parametrize("seed", range(5))
def test_what_is_found_does_not_depend_on_what_the_tokens_are(seed: int):
    renamed: Continuations[int] = Continuations()
    names, before = [17, 4, 90], dict[int, Tokens]()

    def other(text: Tokens) -> Tokens:
        return tuple(names[token_id] for token_id in text)

    for tree, inside, wanted in story(seed):
        for gone in before.keys() - inside.keys():
            renamed.discard(HERE, other(before[gone]), gone)
        for new in inside.keys() - before.keys():
            renamed.put(HERE, other(inside[new]), new)
        before = dict(inside)

        assert renamed.most_common(HERE, other(wanted)) == tree.most_common(HERE, wanted)
