"""What a form may be, and what is said of one that is wrong."""

import asyncio

import pytest
from starlette.requests import Request

from gateway.console import forms
from gateway.console.forms import Form, Problems, read_form
from gateway.console.key_forms import FIELD_BY_PATH, expiry_of
from gateway.errors import FieldViolation, InvalidFieldError, PreconditionError

URLENCODED = "application/x-www-form-urlencoded"


def posted(*chunks: bytes, media_type: str = URLENCODED, ends: bool = True) -> Request:
    """A request whose body comes in these pieces, and then ends or not."""
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    if ends:
        messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive():
        if messages:
            return messages.pop(0)
        return await asyncio.Event().wait()

    return Request({"type": "http", "headers": [(b"content-type", media_type.encode())]}, receive)


async def test_fields_are_read_as_browsers_send_them() -> None:
    form = await read_form(posted(b"name=+a%20b+&on=on&each=1&each=&ea", b"ch=2&words=a%2C+b%0D%0Ac&%C3%A9=%C3%A9"))

    assert form.text("name") == "a b"
    assert form.text("missing") == ""
    assert (form.is_on("on"), form.is_on("off")) == (True, False)
    assert form.all("each") == ["1", "2"]
    assert form.words("words") == ["a", "b", "c"]
    assert form.text("é") == "é"


@pytest.mark.parametrize(
    "request_",
    [
        posted(b"a=1", media_type="application/json"),
        posted(b"a=1", media_type="multipart/form-data; boundary=x"),
        posted(b"a=" + b"x" * forms.MAX_BYTES),
        posted(b"a=%ff"),
        posted(b"a=\xff"),
        posted(b"&".join([b"a=1"] * (forms.MAX_FIELDS + 1))),
    ],
    ids=["json", "multipart", "large", "no-utf-8", "no-utf-8-either", "many-fields"],
)
async def test_what_is_no_form_of_ours_is_refused(request_: Request) -> None:
    with pytest.raises(InvalidFieldError):
        await read_form(request_)


async def test_a_form_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "PATIENCE_S", 0.01)

    with pytest.raises(InvalidFieldError, match="too slowly"):
        await read_form(posted(b"a=1", ends=False))


def test_problems_are_told_at_their_fields_and_the_others_above() -> None:
    error = InvalidFieldError(
        FieldViolation("api_key.ip_cidrs[2]", "is no network"),
        FieldViolation("api_key.ip_cidrs[3]", "neither"),
        FieldViolation("elsewhere", "is wrong"),
    )

    problems = Problems.of(error, {"api_key.ip_cidrs": "cidrs"})

    assert problems.at("cidrs") == "is no network"
    assert problems.at("other") == ""
    assert problems.general == ("elsewhere: is wrong",)
    assert Problems.of(PreconditionError("not now"), {}).general == ("not now",)
    assert not Problems()


def test_a_key_ends_at_the_same_moment_however_often_its_form_is_sent() -> None:
    form = Form({"asked": ["1"], "lifetime": ["30"]})
    odd = [Form({"asked": [text], "lifetime": ["30"]}) for text in ("", "x", "9" * 11, "9" * 40, "-1", "٣")]

    recent = Form({"asked": [str(expiry_of(form).seconds - 30 * 86_400 - 60)], "lifetime": ["30"]})

    assert expiry_of(recent).seconds == int(recent.text("asked")) + 30 * 86_400
    assert all(abs(expiry_of(each).seconds - expiry_of(form).seconds) < 60 for each in odd)


@pytest.mark.parametrize("lifetime", ["9999999999", "91", "", "Never", "-1"])
def test_a_key_does_not_get_a_lifetime_that_nobody_chose(lifetime: str) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        expiry_of(Form({"lifetime": [lifetime]}))

    assert Problems.of(refused.value, FIELD_BY_PATH).at("lifetime")
