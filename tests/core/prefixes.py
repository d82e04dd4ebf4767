"""Schedulers that cache prefixes, and what became of requests that they served."""

from tests.builders import Driver, make_scheduler

COMMON = list(range(32))  # eight blocks of four tokens


def make_caching(scheduling: str = "fcfs", **fields: object) -> Driver:
    return Driver(make_scheduler(scheduling, enable_prefix_caching=True, **fields))


def served(driver: Driver, *requests: object) -> list[int]:
    """Run these requests to their end, and tell how many tokens of each prompt were found."""
    driver.add(*requests)
    driver.run()
    names = [request.generation_id for request in requests]
    return [driver.finished(name).usage.num_cached_prompt_tokens for name in names]


def num_computed(driver: Driver) -> int:
    """Tokens in the chunks of all plans so far."""
    return sum(sum(plan.num_tokens) for plan in driver.plans)
