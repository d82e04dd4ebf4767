"""What the command line and the console say of a request that waits, and of names: the same, in the same words."""

import itertools
from importlib.resources import files

import pytest

from evenflow.admin.v1 import admin_pb2 as pb
from gateway import words
from gateway.cli import keys, orgs, teams
from gateway.cli.queue import EXPLANATION_COLUMNS
from gateway.console.queue import explanation
from gateway.words import REASONS, State, position_text, short_name, wait_text

CELLS = {column.heading: column.text for column in EXPLANATION_COLUMNS}


def told(state: str = "waiting", blocked_by: str = "order", position: int = 3, **fields) -> pb.ExplainRequestResponse:
    request = pb.QueueEntry(state=state, team="organizations/acme/teams/search")
    response = pb.ExplainRequestResponse(request=request, blocked_by=blocked_by, position=position, **fields)
    response.estimated_wait.FromMilliseconds(1_500)
    return response


@pytest.mark.parametrize(("state", "blocked_by"), list(itertools.product(State, [*REASONS, "new"])))
@pytest.mark.parametrize("is_at_least", [False, True])
def test_the_console_explains_in_the_words_of_the_command_line(state: str, blocked_by: str, is_at_least: bool):
    response = told(state, blocked_by, position_is_lower_bound=is_at_least)
    page = explanation(response)

    assert page.reason == CELLS["HELD UP BY"](response)
    assert page.position == CELLS["POSITION"](response)
    assert page.estimated_wait == CELLS["EXPECTED WAIT"](response)
    assert page.line.team == CELLS["TEAM"](response) == "acme/search"


def test_a_position_is_told_as_far_as_it_is_known():
    assert position_text("waiting", "order", 3, is_at_least=False) == "3 before it"
    assert position_text("swapped", "order", 100, is_at_least=True) == "more than 100 before it"
    assert position_text("waiting", "rows", 0, is_at_least=False) == "next"
    assert position_text("running", "", 0, is_at_least=False) == "not in the queue"
    assert position_text("waiting", "quota", 0, is_at_least=False) == "not in the queue"


def test_a_wait_is_told_as_far_as_it_is_known():
    assert wait_text(1.5, is_at_least=False) == "about 1.5 s"
    assert wait_text(90, is_at_least=True) == "more than 90.0 s"


def test_standings_are_of_the_innermost_levels():
    assert words.standings_of([1.0, 2.0]) == [("organization", 1.0), ("team", 2.0)]
    assert words.standings_of([2.0]) == [("team", 2.0)]
    assert words.standings_of([]) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("organizations/acme/teams/search", "acme/search"),
        ("priorityClasses/batch", "batch"),
        ("jwtIssuers/login/subjects/ada", "login/ada"),
        ("1b4e28ba-2fa1/1b4e28ba-2fa2", "1b4e28ba-2fa1/1b4e28ba-2fa2"),
        ("jwtIssuers/login/subjects/a/b", "jwtIssuers/login/subjects/a/b"),
        ("platform", "platform"),
        ("", ""),
    ],
)
def test_a_name_is_short_where_it_is_a_resources(name: str, text: str):
    assert short_name(name) == text


@pytest.mark.parametrize(
    ("columns", "template"),
    [(orgs.COLUMNS, "organization_new"), (teams.COLUMNS, "team_fields"), (keys.COLUMNS, "key_fields")],
)
def test_a_display_name_is_called_that_in_lists_options_and_forms(columns, template: str):
    form = (files("gateway.console") / "templates" / f"{template}.html").read_text()

    assert "DISPLAY NAME" in [column.heading for column in columns]
    assert 'field("display_name", "Display name"' in form
