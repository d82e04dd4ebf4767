"""The share that is kept for a class."""

from engine.core.types import PriorityClass
from policies.kept_share import KeptShare

KEPT = PriorityClass("low", rank=5, min_share=0.25)


def test_a_class_is_short_while_it_has_less_than_its_share_of_the_service():
    kept = KeptShare(window=100)

    kept.accrue(KEPT, 40)
    assert kept.is_short(KEPT)
    kept.accrue(KEPT, 10)
    kept.spend(10)
    assert kept.lag == 2.5
    kept.spend(2.5)
    assert not kept.is_short(KEPT)
    assert kept.is_short(KEPT, 1)  # once the others were served so much more


def test_neither_credit_nor_debt_is_above_the_window():
    kept = KeptShare(window=100)

    kept.accrue(KEPT, 1_000)
    assert kept.lag == 100
    kept.spend(1_000)
    assert kept.lag == -100


def test_idling_earns_no_credit_and_forgives_no_debt():
    ahead, behind = KeptShare(window=100, lag=30), KeptShare(window=100, lag=-30)

    ahead.forget_credit()
    behind.forget_credit()

    assert (ahead.lag, behind.lag) == (0, -30)


def test_a_class_without_a_share_is_never_short():
    assert not KeptShare(window=100, lag=50).is_short(PriorityClass("none"))
