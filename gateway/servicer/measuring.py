"""What the meters are told of admissions and of generations that have ended."""

import time
from collections import abc
from contextlib import contextmanager

from gateway.admission_terms import Admitted
from gateway.auth import Principal
from gateway.errors import GatewayError
from gateway.meters import Ended, Meters
from gateway.servicer.ask import ChatPrompt
from gateway.servicer.job import Job
from gateway.servicer.outcome import Outcome, Usage
from gateway.servicer.relay import Generation

NS_PER_S = 1e9


async def measured_admission(meters: Meters, principal: Principal, admitting: abc.Awaitable[Admitted]) -> Admitted:
    """What `admitting` returns or raises, counted."""
    with measured_refusal(meters, principal):
        admitted = await admitting
    meters.admitted("best_effort" if admitted.is_best_effort else "admitted", "", tenant_of(principal))
    return admitted


@contextmanager
def measured_refusal(meters: Meters, principal: Principal) -> abc.Iterator[None]:
    """The block is a part of an admission; one that is refused there is counted."""
    with meters.stage("admit"):
        try:
            yield
        except GatewayError as error:
            meters.admitted("refused", error.reason, tenant_of(principal))
            raise


def operation_of(job: Job) -> str:
    """In the words of the semantic conventions."""
    return "chat" if isinstance(job.ask.prompt, ChatPrompt) else "text_completion"


def tenant_of(principal: Principal) -> str:
    """`acme/search`."""
    return f"{principal.organization or ''}/{principal.team or ''}"


def ended_of(generation: Generation, outcome: Outcome) -> Ended:
    """A generation that has just ended."""
    job, progress = generation.job, generation.progress
    return Ended(
        operation=operation_of(job),
        model=job.model.info.name,
        tenant=tenant_of(job.principal),
        priority_class=job.request.priority_class.name,
        outcome=outcome.finish_reason.value,
        reason=outcome.error.reason if outcome.error else "",
        is_scheduled=progress.is_scheduled,
        arrived_s=progress.arrived_s,
        first_token_s=progress.first_token_s,
        ended_s=time.monotonic(),
        queue_s=outcome.timings.queue_ns / NS_PER_S if outcome.timings else None,
        tokens=_tokens(outcome.usage),
        # What a search finds comes all at once: there is no time between its tokens.
        num_output_tokens=0 if progress.found else outcome.usage.num_output_tokens,
        num_reader_holds=progress.num_reader_holds,
    )


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "input": usage.num_input_tokens,
        "cached_input": usage.num_cached_input_tokens,
        "output": usage.num_output_tokens,
        "discarded": usage.num_discarded_tokens,
    }
