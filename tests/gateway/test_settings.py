"""Settings are whole or the start stops, with the setting's name on one line."""

from pathlib import Path

import pytest

from engine.server.listener import MAX_SOCKET_PATH_BYTES as engine_limit  # noqa: N811 - one of three of that name
from gateway.embedded.socket_directory import MAX_SOCKET_PATH_BYTES as database_limit  # noqa: N811
from gateway.errors import SettingsError
from gateway.settings import MAX_UNIX_PATH_BYTES, check_environment, load_settings, read_pepper, read_pepper_variable

GOOD = {"engine": "unix:/run/engine.sock", "database_url": "postgresql://u@h/d"}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("EVENFLOW_"):
            monkeypatch.delenv(name)


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENFLOW_GATEWAY_LISTEN", "0.0.0.0:1")
    monkeypatch.setenv("EVENFLOW_GATEWAY_ENGINE", "unix:/a,unix:/b")
    monkeypatch.setenv("EVENFLOW_DATABASE_URL", "postgresql://env@h/d")

    settings = load_settings(database_url="postgresql://flag@h/d", listen=None)

    assert settings.listen == "0.0.0.0:1"
    assert settings.engine == ("unix:/a", "unix:/b")
    assert settings.database_url.get_secret_value() == "postgresql://flag@h/d"


def test_settings_cannot_be_changed_and_do_not_print_secrets() -> None:
    settings = load_settings(**GOOD, pepper="a-secret-pepper-of-length")

    with pytest.raises(ValueError, match="frozen"):
        settings.listen = "x"  # type: ignore[misc]  # that it cannot be is what is tested
    assert "secret" not in repr(settings)
    assert "u@h" not in repr(settings)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"engine": None}, "engine"),
        ({"database_url": None}, "database_url"),
        ({"engine": "localhost:1"}, "--engine"),
        ({"engine": "unix:"}, "--engine"),
        ({"engine": "unix:/a,unix:/a"}, "--engine"),
        ({"engine": "unix:/" + "x" * 106}, "--engine"),
        ({"auth_stale_max_s": 1}, "--auth-stale-max-s"),
        ({"listen": "nowhere"}, "--listen"),
        ({"listen": "h:70000"}, "--listen"),
        ({"drain_grace_s": -1}, "--drain-grace-s"),
        ({"ledger_capacity": 0}, "--ledger-capacity"),
        ({"no_such_setting": 1}, "no_such_setting"),
    ],
)
def test_a_bad_setting_is_named_on_one_line(flags: dict, name: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        load_settings(**{**GOOD, **flags})

    assert str(refusal.value).startswith(f"{name}:")
    assert "\n" not in str(refusal.value)


def test_all_parts_agree_on_how_long_a_socket_path_may_be() -> None:
    longest = "/" + "x" * 105

    assert load_settings(**{**GOOD, "engine": f"unix:{longest}"}).engine == (f"unix:{longest}",)
    assert len(longest) == MAX_UNIX_PATH_BYTES == engine_limit == database_limit


def test_a_bad_value_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENFLOW_GATEWAY_DRAIN_GRACE_S", "soon")

    with pytest.raises(SettingsError, match=r"^EVENFLOW_GATEWAY_DRAIN_GRACE_S: "):
        load_settings(**GOOD)


@pytest.mark.parametrize("name", ["EVENFLOW_GATEWAY_LISTNE", "EVENFLOW_DATABASE", "EVENFLOW_"])
def test_an_unknown_variable_stops_the_start(name: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: "):
        check_environment({name: "x"})


def test_variables_of_the_other_parts_are_none_of_the_gateways_business() -> None:
    check_environment(
        {"EVENFLOW_ENGINE_ANYTHING": "1", "EVENFLOW_API_KEY": "k", "EVENFLOW_ADDRESS": "a", "PATH": "/bin"}
    )


def test_the_pepper_comes_from_the_variable_or_the_file(tmp_path: Path) -> None:
    (tmp_path / "pepper").write_text("pepper-of-the-file-0123\n")

    assert read_pepper(load_settings(**GOOD, data_dir=tmp_path)) == b"pepper-of-the-file-0123"
    assert read_pepper(load_settings(**GOOD, data_dir=tmp_path, pepper="x" * 16)) == b"x" * 16


@pytest.mark.parametrize("content", [None, "short"])
def test_a_pepper_that_cannot_be_used_names_its_file(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "pepper").write_text(content)

    with pytest.raises(SettingsError, match=str(tmp_path / "pepper")):
        read_pepper(load_settings(**GOOD, data_dir=tmp_path))


@pytest.mark.parametrize("given", ["0123456789abcdef", " 0123456789abcdef\n"])
def test_the_variable_gives_every_command_the_same_pepper(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("EVENFLOW_PEPPER", given)

    assert (
        read_pepper(load_settings(**GOOD)) == read_pepper_variable({"EVENFLOW_PEPPER": given}) == given.strip().encode()
    )


@pytest.mark.parametrize("given", ["", " ", "short", "fifteen-bytes--" + " " * 9])
def test_a_variable_that_holds_no_pepper_is_refused_by_every_command(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("EVENFLOW_PEPPER", given)

    with pytest.raises(SettingsError, match="EVENFLOW_PEPPER holds fewer than 16 bytes"):
        read_pepper(load_settings(**GOOD))
    with pytest.raises(SettingsError, match="EVENFLOW_PEPPER holds fewer than 16 bytes"):
        read_pepper_variable({"EVENFLOW_PEPPER": given})


def test_a_variable_that_is_not_set_gives_no_pepper() -> None:
    assert read_pepper_variable({}) is None
