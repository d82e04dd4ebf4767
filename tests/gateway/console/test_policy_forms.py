"""Forms of policies, classes and grants as pure functions: read, shown, compared."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console import class_form
from gateway.console.form_values import FormReader
from gateway.console.policies.form import DIMENSIONS, WINDOWS, form_of, read_policy, rows_of
from gateway.console.policies.grant_form import choices_of, read_grant
from gateway.console.policies.parts import limit_text, merged, parts_of
from gateway.console.versions import differences

NAME = "organizations/acme/teams/search/quotaPolicies/default"


def limit(dimension: str, amount: int, minutes: int = 1, burst: int = 0, model: str = "") -> pb.QuotaLimit:
    made = pb.QuotaLimit(dimension=DIMENSIONS[dimension], limit=amount, burst=burst or max(1, amount // 6), model=model)
    made.period.FromSeconds(60 * minutes)
    return made


def slots(amount: int) -> pb.QuotaLimit:
    return pb.QuotaLimit(dimension=pb.QUOTA_DIMENSION_CONCURRENCY, limit=amount)


def policy(**fields) -> pb.QuotaPolicy:
    some = {
        "name": NAME,
        "mode": pb.QUOTA_MODE_ENFORCE,
        "on_store_loss": pb.STORE_LOSS_ACTION_SERVE_STALE,
        "weight": 2.0,
        "time_zone": "UTC",
        "etag": "1f",
    }
    return pb.QuotaPolicy(**(some | fields))


def read(form, **options):
    return read_policy(form, NAME, **({"has_weight": True} | options))


def test_a_form_says_what_the_policy_says():
    shown = policy(
        limits=[limit("REQUESTS", 600, burst=50), limit("TOTAL_TOKENS", 6000, minutes=60, model="large"), slots(8)],
        budgets=[pb.QuotaBudget(window=pb.BUDGET_WINDOW_MONTH, limit=10**6)],
        cost_weights=[pb.CostWeights(model="large", input_token=4, cached_input_token=1, output_token=8)],
        reservation=pb.RESERVATION_MODE_EXPECTED,
        strict=True,
        max_overdraft=500,
    )

    again = read(form_of(shown))

    assert not again.errors
    # A burst that follows the limit is left to the service.
    shown.limits[1].burst = 0
    assert again.policy == shown


words = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=20)
limits = st.builds(
    limit,
    st.sampled_from(sorted(DIMENSIONS.keys() - {"CONCURRENCY"})),
    st.integers(1, 10**15 - 1),
    st.integers(1, 1440),
    st.integers(1, 10**15 - 1),
    words,
)
budgets = st.builds(
    pb.QuotaBudget, window=st.sampled_from(list(WINDOWS.values())), limit=st.integers(1, 10**15 - 1), model=words
)


@settings(max_examples=30)
@given(st.lists(limits, max_size=4), st.lists(budgets, max_size=3), st.floats(0.001, 1000), st.booleans())
def test_a_form_that_nobody_touched_changes_nothing(some_limits, some_budgets, weight, strict):
    shown = policy(limits=some_limits, budgets=some_budgets, weight=float(f"{weight:.6g}"), strict=strict)

    again = read(form_of(shown))

    assert not again.errors
    assert differences(parts_of(shown), parts_of(shown), parts_of(again.policy)) == []


def test_rows_that_are_empty_or_removed_are_no_parts():
    form = form_of(policy(limits=[limit("REQUESTS", 60), slots(4)])) | {
        "limits-0-remove": "on",
        "limits-7-dimension": "",
        "limits-7-amount": "",
    }

    assert [each.limit for each in read(form).policy.limits] == [4]
    assert rows_of(form, "limits", 1) == [0, 1, 7, 8]
    assert rows_of({}, "limits", 2) == [0, 1]


def test_every_mistake_is_told_beside_its_field():
    form = {
        "weight": "two",
        "mode": "SOMETIMES",
        "max_overdraft": "-5",
        "limits-0-dimension": "REQUESTS",
        "limits-0-amount": "many",
        "limits-0-period": "1 fortnight",
        "limits-3-amount": "5",
        "budgets-0-window": "YEAR",
        "budgets-0-amount": "1.5",
        "costs-0-model": "large",
        "costs-0-input": "9" * 40,
    }

    errors = read(form).errors

    assert errors.keys() == {
        *("weight", "mode", "max_overdraft", "limits-0-amount", "limits-0-period", "limits-3-dimension"),
        *("budgets-0-window", "budgets-0-amount", "costs-0-input", "costs-0-cached", "costs-0-output"),
    }
    assert errors["costs-0-input"] == "is too large a number"


def test_numbers_are_read_as_people_paste_them():
    reader = FormReader({"a": "1,000,000", "b": " 12 000 ", "c": "1_000", "d": "1.000", "e": ""})

    assert [reader.whole(name) for name in "abc"] == [1_000_000, 12_000, 1000]
    assert reader.whole("e", 7) == 7
    assert reader.whole("d") == 0
    assert reader.errors.keys() == {"d"}


def test_what_the_service_refuses_is_told_beside_the_row_that_it_is_about():
    form = form_of(policy(limits=[limit("REQUESTS", 60), slots(4)])) | {"limits-0-remove": "on"}

    done = read(form)

    assert done.field_of("quota_policy.limits[0].limit") == "limits-1-amount"
    assert done.field_of("entries[0].quota_policy.limits[0]") == "limits-1-dimension"
    assert done.field_of("quota_policy.limits[0].period.nanos") == "limits-1-period"
    assert done.field_of("quota_policy.weight") == "weight"
    assert done.field_of("update_mask") == ""


def test_a_key_has_no_weight():
    assert "weight" not in read({}, has_weight=False).errors
    assert "weight" in read({}).errors


def test_a_limit_reads_as_a_sentence():
    assert limit_text(limit("REQUESTS", 60_000)) == "60,000 per minute, 10,000 at once"
    assert limit_text(limit("REQUESTS", 60, minutes=90, burst=5)) == "60 per 90m, 5 at once"
    assert limit_text(slots(8)) == "8 at once"


def test_saving_on_top_keeps_what_only_the_other_changed():
    base = policy(weight=1.0, limits=[limit("REQUESTS", 60), slots(4)])
    theirs = policy(weight=1.0, limits=[limit("REQUESTS", 60), slots(9), limit("INPUT_TOKENS", 100)], etag="2a")
    yours = policy(weight=5.0, limits=[limit("REQUESTS", 600), slots(4)])

    result = merged(base, theirs, yours)

    assert (result.weight, result.etag) == (5.0, "2a")
    assert [(each.dimension, each.limit) for each in result.limits] == [
        (pb.QUOTA_DIMENSION_REQUESTS, 600),
        (pb.QUOTA_DIMENSION_CONCURRENCY, 9),
        (pb.QUOTA_DIMENSION_INPUT_TOKENS, 100),
    ]
    found = {each.label: each for each in differences(*map(parts_of, (base, theirs, yours)))}
    assert not any(each.is_conflict for each in found.values())
    assert (found["Weight"].base, found["Weight"].theirs, found["Weight"].yours, found["Weight"].result) == (
        *("1", "1", "5", "5"),
    )


def test_what_both_changed_is_marked_and_yours_is_saved():
    base = policy(limits=[limit("REQUESTS", 60), slots(4)])
    theirs = policy(limits=[limit("REQUESTS", 120)])
    yours = policy(limits=[limit("REQUESTS", 600), slots(8)])

    requests, concurrency = differences(*map(parts_of, (base, theirs, yours)))

    assert requests.is_conflict
    assert concurrency.is_conflict
    assert (concurrency.theirs, concurrency.result) == ("none", "8 at once")
    assert [each.limit for each in merged(base, theirs, yours).limits] == [600, 8]


def test_the_same_change_made_twice_is_no_conflict():
    base, same = policy(limits=[slots(4)]), policy(limits=[])

    (difference,) = differences(*map(parts_of, (base, same, same)))

    assert not difference.is_conflict
    assert difference.is_agreed
    assert list(merged(base, same, same).limits) == []


fields = st.fixed_dictionaries(
    {
        "weight": st.sampled_from((1.0, 2.0, 3.0)),
        "strict": st.booleans(),
        "limits": st.lists(
            st.builds(limit, st.sampled_from(("REQUESTS", "INPUT_TOKENS")), st.sampled_from((60, 600))),
            unique_by=lambda each: each.dimension,
        ),
        "budgets": st.lists(
            st.builds(pb.QuotaBudget, window=st.just(pb.BUDGET_WINDOW_DAY), limit=st.sampled_from((5, 6))), max_size=1
        ),
    }
)


@settings(max_examples=30)
@given(fields, fields, fields)
def test_what_is_saved_on_top_is_what_the_page_said_it_would_be(base, theirs, yours):
    sides = [policy(**side) for side in (base, theirs, yours)]

    result = {part.label: part.text for part in parts_of(merged(*sides)).values()}

    for difference in differences(*map(parts_of, sides)):
        assert result.get(difference.label, "none") == difference.result


def test_a_class_is_read_shown_and_merged():
    base = pb.PriorityClass(name="priorityClasses/batch", rank=200, min_share=0.05, preemptible=True, etag="1")
    base.max_queue_wait.FromSeconds(90)
    form = class_form.form_of(base)
    assert form == {"rank": "200", "min_share": "5", "etag": "1", "preemptible": "on", "max_queue_wait": "90s"}
    assert class_form.read_class(form, base.name) == (base, {})
    theirs, yours = pb.PriorityClass(), pb.PriorityClass()
    theirs.CopyFrom(base)
    theirs.rank, theirs.etag = 300, "2"
    yours.CopyFrom(base)
    yours.ClearField("max_queue_wait")
    yours.preemptible = False

    result = class_form.merged(base, theirs, yours)

    assert (result.rank, result.preemptible, result.HasField("max_queue_wait"), result.etag) == (300, False, False, "2")
    _, errors = class_form.read_class({"rank": "-1", "min_share": "x", "max_queue_wait": "soon"}, base.name)
    assert errors.keys() == {"rank", "min_share", "max_queue_wait"}
    assert class_form.read_class({"rank": str(2**31), "min_share": "0"}, base.name)[1].keys() == {"rank"}


def test_a_grant_raises_what_was_chosen_even_if_the_policy_has_changed_since():
    opened = policy(limits=[limit("REQUESTS", 60), slots(4)])
    (_, chosen) = choices_of(opened)
    now = policy(limits=[limit("INPUT_TOKENS", 5), limit("REQUESTS", 60), slots(4)])
    form = {"raised": chosen.value, "amount": "16", "until": "2026-12-24T18:00", "reason": "launch"}

    request, errors = read_grant(form, now)

    assert not errors
    assert request.limit == slots(16)
    assert request.expire_time.ToDatetime(UTC) == datetime(2026, 12, 24, 18, tzinfo=UTC)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"raised": "limit/99/"}, "raised"),
        ({"raised": ""}, "raised"),
        ({"amount": ""}, "amount"),
        ({"until": "tomorrow"}, "until"),
        ({"until": ""}, "until"),
        ({"raised": f"budget/{pb.BUDGET_WINDOW_DAY}/", "burst": "5"}, "burst"),
    ],
)
def test_a_grant_that_cannot_be_read_is_told_where(wrong, field):
    of_day = policy(limits=[slots(4)], budgets=[pb.QuotaBudget(window=pb.BUDGET_WINDOW_DAY, limit=5)])
    form = {"raised": choices_of(of_day)[0].value, "amount": "16", "until": "2026-12-24T18:00", "reason": "x"}

    _, errors = read_grant(form | wrong, of_day)

    assert errors.keys() == {field}
