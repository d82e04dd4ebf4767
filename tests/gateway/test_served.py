"""What tenants were served between two looks at the engines' totals."""

from gateway.served import Served, served_between

ACME = "acme", "search"


def totals(**tenants: Served) -> dict[str, dict[tuple[str, ...], Served]]:
    """Of one engine."""
    return {"e": {(name,): served for name, served in tenants.items()}}


def test_what_was_served_is_what_the_totals_rose_by():
    assert served_between({"e": {ACME: Served(10, 0, 30.0)}}, {"e": {ACME: Served(25, 0, 45.0)}}) == {
        ACME: Served(15, 0, 15.0)
    }


def test_tenant_that_was_served_nothing_is_left_out_and_a_new_one_counts_whole():
    before, after = totals(a=Served(5, 5, 15)), totals(a=Served(5, 5, 15), b=Served(1, 2, 5))

    assert served_between(before, after) == {("b",): Served(1, 2, 5)}


def test_engine_that_began_anew_counts_from_its_start():
    assert served_between(totals(a=Served(100, 50, 200)), totals(a=Served(3, 1, 5))) == {("a",): Served(3, 1, 5)}


def test_engines_are_added_up_and_one_that_was_away_adds_nothing():
    before = {"e": {ACME: Served(1, 1, 3)}, "f": {ACME: Served()}}
    after = {"e": {ACME: Served(2, 2, 6)}, "f": {ACME: Served(5, 0, 5)}, "back": {ACME: Served(900, 900, 2700)}}

    assert served_between(before, after) == {ACME: Served(6, 1, 8)}
