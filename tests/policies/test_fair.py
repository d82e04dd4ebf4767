"""The rules of `fair` for counters: charge, floor, lift, yield, borrowing, and what no option may say."""

import pytest

from engine.core.costs import Prices, StepCosts
from engine.core.policy import Demand, Service
from engine.plugins import load_scheduling_policy
from tests.policies.desk import STEP, THETA, Desk, siblings


class TestCharge:
    def test_prompt_and_output_tokens_cost_what_the_options_say(self):
        desk = Desk(prefill_cost=3.0, output_cost=5.0)
        a, _ = siblings(desk, 1, 1)
        desk.policy.charge(Service(a, 7, 2, 0))

        assert desk.lead(a) == 3 * 7 + 5 * 2

    @pytest.mark.parametrize(
        ("are_measured", "pace_prefill", "cost"), [(True, True, 7 + 7), (True, False, 7), (False, True, 7)]
    )
    def test_what_a_prompt_token_reads_costs_the_time_that_it_takes(
        self, are_measured: bool, pace_prefill: bool, cost: float
    ):
        desk = Desk(pace_prefill=pace_prefill)
        desk.prices = Prices(StepCosts(prefill_token_ns=100.0, prefill_key_ns=2.0), are_measured=are_measured)
        a, _ = siblings(desk, 1, 1)
        desk.policy.charge(Service(a, 7, 0, 0, num_prefill_keys=350))

        assert desk.lead(a) == cost

    def test_weight_divides_the_charge(self):
        desk = Desk()
        a, b = siblings(desk, 4, 1)
        desk.serve(a, 40)
        desk.serve(b, 40)

        assert (desk.lead(a), desk.lead(b)) == (10, 40)

    def test_recomputed_tokens_are_nobodys_debt(self):
        desk = Desk()
        a, _ = siblings(desk, 1, 1)
        desk.policy.charge(Service(a, 0, 0, 50))

        assert desk.lead(a) == 0

    def test_every_node_of_the_path_is_charged(self):
        desk = Desk()
        a, b = (desk.flow(team, organization_weight=2.0) for team in "ab")
        desk.begin({a: Demand.BACKLOGGED, b: Demand.BACKLOGGED})
        desk.serve(a, 40)

        assert desk.policy.standing(a)[0] == 20
        assert desk.policy.standing(b)[0] == 0

    def test_an_only_child_is_ahead_of_nobody(self):
        desk = Desk()
        a, _ = (desk.flow(team) for team in "ab")
        desk.begin({a: Demand.BACKLOGGED})
        desk.serve(a, 40)
        desk.begin()

        assert desk.policy.standing(a) == (0, 0)


class TestFloor:
    def test_it_is_the_least_counter_of_those_that_were_denied(self):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        desk.serve(a, 50)
        desk.serve(b, 20)
        desk.begin()

        assert (desk.lead(a), desk.lead(b)) == (30, 0)

    def test_it_is_the_peak_when_nobody_was_denied_anything(self):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        desk.serve(a, 50)
        desk.serve(b, 20)
        desk.begin({a: Demand.SATISFIED, b: Demand.SATISFIED})

        assert (desk.lead(a), desk.lead(b)) == (0, 0)

    def test_it_never_falls(self):
        desk = Desk()
        a, b, c = siblings(desk, 1, 1, 1)
        for flow in (a, b):
            desk.serve(flow, 50)
        desk.begin({c: Demand.NONE})
        assert desk.lead(a) == 0
        desk.begin({c: Demand.BACKLOGGED})  # it was denied in a plan before it could be lifted

        assert desk.lead(a) == 0


class TestLift:
    def test_idling_earns_no_credit(self):
        desk = Desk()
        a, b, c = siblings(desk, 1, 1, 1)
        desk.begin({c: Demand.NONE})
        for _ in range(100):
            desk.serve(a, 50)
            desk.serve(b, 50)
            desk.begin()
        desk.begin({c: Demand.SATISFIED})

        assert desk.lead(c) == 0

    def test_neither_does_getting_all_that_one_wants(self):
        desk = Desk()
        a, b, c = siblings(desk, 1, 1, 1)
        desk.begin({c: Demand.SATISFIED})
        for _ in range(100):
            desk.serve(a, 50)
            desk.serve(b, 50)
            desk.serve(c, 1)
            desk.begin()

        assert desk.lead(c) == 0

    def test_whoever_was_denied_keeps_what_it_is_owed(self):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        for _ in range(3):
            desk.serve(a, 50)
            desk.begin()

        assert (desk.lead(a), desk.lead(b)) == (150, 0)


class TestYield:
    def test_begins_above_the_threshold(self):
        desk = Desk()
        a, _ = siblings(desk, 1, 1)
        desk.serve(a, 100)
        assert desk.begin().yielding == frozenset()
        desk.serve(a, 1)

        assert desk.begin().yielding == {a}

    def test_ends_when_the_others_have_caught_up(self):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        desk.serve(a, 150)
        assert desk.begin().yielding == {a}
        desk.serve(b, 50)

        assert desk.begin().yielding == frozenset()

    def test_of_an_organization_is_that_of_all_its_teams(self):
        desk = Desk()
        a, b = (desk.flow(team, organization="one") for team in "ab")
        c = desk.flow("c", organization="two")
        desk.begin({a: Demand.BACKLOGGED, b: Demand.BACKLOGGED, c: Demand.BACKLOGGED})
        desk.serve(a, 60)
        desk.serve(b, 60)

        assert desk.begin().yielding == {a, b}

    def test_the_automatic_threshold_is_a_steps_worth_of_the_lightest(self):
        desk = Desk(theta=0.0)
        a, b = siblings(desk, 1.0, 0.5)

        assert desk.policy.threshold(a)[-1] == desk.policy.threshold(b)[-1] == STEP / 0.5
        assert desk.policy.step_bound(a)[-1] == STEP
        assert desk.policy.step_bound(b)[-1] == STEP / 0.5

    def test_a_weight_that_changes_changes_the_automatic_threshold(self):
        desk = Desk(theta=0.0)
        a, b = siblings(desk, 1.0, 1.0)
        b.nodes[-1].weight = 0.5
        desk.begin({b: Demand.BACKLOGGED})

        assert desk.policy.threshold(a)[-1] == STEP / 0.5

    @pytest.mark.parametrize(("mode", "lends"), [("work_conserving", True), ("strict", False)])
    def test_only_strict_leaves_the_device_idle(self, mode: str, lends: bool):
        terms = Desk(mode=mode).begin()

        assert terms.lends is lends
        assert terms.protects_yielding is lends


class TestBorrowing:
    def test_is_charged_up_to_a_steps_worth_above_the_threshold(self):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        desk.serve(a, 150)
        desk.begin()
        for _ in range(10):
            desk.serve(a, 50, is_borrowed=True)
            desk.begin()

        assert desk.lead(a) == THETA + STEP
        assert desk.lead(b) == 0

    def test_never_lowers_a_counter(self):
        desk = Desk()
        a, _ = siblings(desk, 1, 1)
        desk.serve(a, 500)
        desk.begin()
        desk.serve(a, 50, is_borrowed=True)

        assert desk.lead(a) == 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "lenient"}, "mode must be work_conserving or strict"),
        ({"theta": "-1"}, "theta"),
        ({"theta": "nan"}, "theta"),
        ({"theta_low": "inf"}, "theta_low"),
        ({"theta": "10", "theta_low": "11"}, "theta_low must be at most theta"),
        ({"slack": "-0.5"}, "slack"),
        ({"prefill_cost": "-1"}, "prefill_cost"),
        ({"output_cost": "-1"}, "output_cost"),
        ({"class_ageing_ms": "-1"}, "class_ageing_ms"),
        ({"pace_prefill": "perhaps"}, "pace_prefill"),
        ({"tetha": "1"}, "tetha"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(options: dict[str, str], message: str):
    with pytest.raises(Exception, match=message):
        load_scheduling_policy("fair", options)
