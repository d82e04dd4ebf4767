"""Peppers by version: how they are written, which one hashes, and how a new one comes in."""

from pathlib import Path

import pytest

from gateway import api_key
from gateway.pepper import PepperError, Peppers, PepperSource

OLD, NEW = b"the-old-pepper-0123456789", b"the-new-pepper-0123456789"
BOTH = b"1:%s\n2:%s\n" % (OLD, NEW)


def test_one_secret_alone_is_version_one() -> None:
    peppers = Peppers.parse(OLD + b"\n")

    assert (dict(peppers.by_version), peppers.version, peppers.newest) == ({1: OLD}, 1, OLD)


@pytest.mark.parametrize(
    "text", [b"a secret: of several words", b"0:0123456789abcdef", b"1:0123456789abcdef\nand more"]
)
def test_a_text_that_is_not_all_versions_is_one_secret(text: bytes) -> None:
    assert dict(Peppers.parse(text).by_version) == {1: text}


def test_the_highest_version_hashes_and_all_of_them_check() -> None:
    peppers, before = Peppers.parse(BOTH), Peppers.parse(OLD)
    secret = api_key.generate().secret

    assert (peppers.version, peppers.newest) == (2, NEW)
    assert peppers.is_match(secret, before.digest(secret), 1)
    assert peppers.is_match(secret, peppers.digest(secret), 2)
    assert not peppers.is_match(secret, before.digest(secret), 2)
    assert not peppers.is_match(secret, peppers.digest(secret), 3)


def test_a_new_version_is_added_to_those_that_are_there() -> None:
    once = Peppers.parse(OLD).with_new(NEW)
    twice = Peppers.parse(once).with_new(b"another-pepper-0123456789")

    assert once == BOTH
    assert sorted(Peppers.parse(twice).by_version) == [1, 2, 3]


@pytest.mark.parametrize("text", [b"", b"short", b"1:short", b"1:%s\n1:%s" % (OLD, NEW), b"1:%s\n2:short" % OLD])
def test_what_cannot_keep_a_secret_is_refused(text: bytes) -> None:
    with pytest.raises(PepperError):
        Peppers.parse(text)


def test_a_version_that_appears_in_the_file_is_known_when_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    path.write_bytes(OLD)
    source = PepperSource(Peppers.parse(OLD), path)
    assert (source.has(1), source.has(2)) == (True, False)

    path.write_bytes(BOTH)
    assert source.has(2)
    assert source.current.version == 2


@pytest.mark.parametrize("content", [None, b"short"])
def test_a_file_that_is_gone_or_broken_leaves_what_was_known(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "pepper"
    if content is not None:
        path.write_bytes(content)
    source = PepperSource(Peppers.parse(OLD), path)

    assert not source.has(2)
    assert source.has(1)
