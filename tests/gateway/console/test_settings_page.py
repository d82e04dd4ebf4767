"""The page of settings: what people may know of each, and no secret."""

from pathlib import Path

import pytest

from gateway.console.pages.settings import HIDDEN, Setting, settings_of
from gateway.settings import load_settings
from tests.gateway.console.visitors import Visitors, texts
from tests.gateway.world import PEPPER

SECRET_URL = "postgresql://evenflow:geheim@db/evenflow"


def shown(data_dir: Path, **given: object) -> dict[str, Setting]:
    settings = load_settings(engine="unix:/e.sock", database_url=SECRET_URL, data_dir=data_dir, **given)
    return {setting.name: setting for setting in settings_of(settings)}


def test_secrets_are_not_shown_and_it_is_said_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("EVENFLOW_PEPPER", raising=False)
    in_a_file, given = shown(tmp_path), shown(tmp_path, pepper=PEPPER)

    assert in_a_file["database_url"].value == given["pepper"].value == HIDDEN
    assert (in_a_file["pepper"].value, in_a_file["pepper"].is_default) == (f"in the file {tmp_path / 'pepper'}", True)


def test_what_was_not_set_is_told_from_what_was(tmp_path: Path):
    settings = shown(tmp_path, console="off")

    assert (settings["console"].value, settings["console"].is_default) == ("off", False)
    assert (settings["reuse_port"].value, settings["reuse_port"].is_default) == ("off", True)
    assert settings["tls_cert"].value == ""


async def test_settings_are_on_a_page_of_administrators(visitors: Visitors):
    ada = await visitors.administrator()

    page = await ada.get("/console/settings")

    assert page.status_code == 200
    assert "pepper set, and not shown EVENFLOW_PEPPER" in texts(page)
    assert PEPPER not in page.text
