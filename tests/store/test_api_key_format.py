"""The text of an API key: what parses, what does not, and that nothing is looked up to know."""

import string

from hypothesis import given
from hypothesis import strategies as st

from gateway import api_key

BASE62 = string.ascii_letters + string.digits
PUBLIC_IDS = st.text(BASE62, min_size=12, max_size=12)
SECRETS = st.text(BASE62, min_size=43, max_size=43)


@given(PUBLIC_IDS, SECRETS)
def test_every_formatted_key_parses_to_its_parts(public_id: str, secret: str) -> None:
    assert api_key.parse(api_key.format_key(public_id, secret)) == (public_id, secret)


@given(PUBLIC_IDS, SECRETS, st.data())
def test_no_single_typo_is_accepted(public_id: str, secret: str, data: st.DataObject) -> None:
    text = api_key.format_key(public_id, secret)
    position = data.draw(st.integers(0, len(text) - 1))
    typo = data.draw(st.characters().filter(lambda character: character != text[position]))

    assert api_key.parse(text[:position] + typo + text[position + 1 :]) is None


def test_no_replaced_character_at_any_position_is_accepted() -> None:
    text = api_key.generate().text

    accepted = [
        (position, typo)
        for position in range(len(text))
        for typo in BASE62 + "_-"
        if typo != text[position] and api_key.parse(text[:position] + typo + text[position + 1 :]) is not None
    ]

    assert accepted == []


@given(PUBLIC_IDS, SECRETS, st.data())
def test_two_swapped_neighbours_are_not_accepted(public_id: str, secret: str, data: st.DataObject) -> None:
    text = api_key.format_key(public_id, secret)
    left = data.draw(st.integers(0, len(text) - 2))
    swapped = text[:left] + text[left + 1] + text[left] + text[left + 2 :]

    assert swapped == text or api_key.parse(swapped) is None


@given(st.text())
def test_arbitrary_text_is_refused_without_an_error(text: str) -> None:
    assert api_key.parse(text) is None


def test_a_key_with_anything_around_it_is_refused() -> None:
    text = api_key.generate().text

    assert [api_key.parse(near) for near in (text + "\n", " " + text, text + text, text[:-1], "")] == [None] * 5


def test_generated_keys_have_the_published_shape_and_differ() -> None:
    keys = [api_key.generate() for _ in range(100)]

    assert {len(key.text) for key in keys} == {len("ef_live_") + 12 + 1 + 43 + 1 + 6}
    assert {api_key.parse(key.text) for key in keys} == {(key.public_id, key.secret) for key in keys}
    assert len({key.secret for key in keys}) == len({key.public_id for key in keys}) == 100


def test_a_digest_matches_its_secret_and_pepper_only() -> None:
    key, other = api_key.generate(), api_key.generate()
    stored = api_key.digest(b"pepper", key.secret)

    assert len(stored) == 32
    assert api_key.is_match(b"pepper", key.secret, stored)
    assert not api_key.is_match(b"pepper", other.secret, stored)
    assert not api_key.is_match(b"another pepper", key.secret, stored)
