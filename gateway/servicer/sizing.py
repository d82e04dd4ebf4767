"""How large a request is before anything is held for it, and what the engine is asked once its quota is.

Pure. What a model cannot hold is refused here.
"""

import secrets
from dataclasses import dataclass
from uuid import UUID

from gateway.admission_terms import Admitted, Demand
from gateway.auth import Principal
from gateway.engine_client import EngineRequest, Sampling
from gateway.servicer.ask import GenerationAsk
from gateway.servicer.deadline import Deadline
from gateway.servicer.grammar import grammar_of
from gateway.servicer.output_size import output_size
from gateway.servicer.served_models import ServedModel

SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to become a generation of that id. `reports_queue`: its messages tell of its place while it waits."""

    principal: Principal
    ask: GenerationAsk
    deadline: Deadline
    generation_id: UUID
    reports_queue: bool


@dataclass(frozen=True, slots=True)
class Sized:
    """A wish with the model that is to fulfil it, its prompt in that one's tokens, and what it asks of the quota.

    `max_output_tokens` is the length of one output; of the quota a beam search asks for as many of them as it is wide.
    """

    wish: Wish
    model: ServedModel
    prompt_token_ids: tuple[int, ...]
    max_output_tokens: int
    demand: Demand

    @classmethod
    def of(cls, wish: Wish, model: ServedModel, prompt_token_ids: tuple[int, ...]) -> "Sized":
        """Raises ContextLengthError or ExceedsKvPoolError where prompt and output can never be held."""
        ask, num_input_tokens = wish.ask, len(prompt_token_ids)
        size = output_size(ask.stopping.max_output_tokens, num_input_tokens, model.info, ask.num_beams)
        demand = Demand(
            generation_id=str(wish.generation_id),
            model=model.info.name,
            priority_class=ask.admission.priority_class,
            num_input_tokens=num_input_tokens,
            max_output_tokens=ask.num_beams * size,
            when_exhausted=ask.admission.when_exhausted,
            num_beams=ask.num_beams,
        )
        return cls(wish, model, prompt_token_ids, size, demand)


def engine_request(sized: Sized, admitted: Admitted) -> EngineRequest:
    """What the engine is asked; the seed is drawn here if the caller left it open."""
    ask = sized.wish.ask
    waits_ns = [wait for wait in (ask.admission.max_queue_wait_ns, admitted.max_queue_wait_ns) if wait is not None]
    return EngineRequest(
        generation_id=admitted.demand.generation_id,
        path=admitted.path,
        priority_class=admitted.priority_class,
        cache_salt=admitted.cache_salt,
        prompt_token_ids=sized.prompt_token_ids,
        sampling=_sampling(ask, sized.model, speculates=ask.sampling.speculates and admitted.speculates),
        max_output_tokens=sized.max_output_tokens,
        deadline_ns=sized.wish.deadline.engine_ns,
        max_queue_wait_ns=min(waits_ns) if waits_ns else None,
        policy_revision=admitted.policy_revision,
        reports_queue=sized.wish.reports_queue,
        granted_output_tokens=None if admitted.slices is None else admitted.slices.num_granted,
        beam_search=ask.beam_search,
    )


def _sampling(ask: GenerationAsk, model: ServedModel, *, speculates: bool) -> Sampling:
    sampling, stopping = ask.sampling, ask.stopping
    return Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=secrets.randbits(SEED_BITS) if sampling.seed is None else sampling.seed,
        stop_token_ids=stopping.stop_token_ids,
        ignore_eos=stopping.ignore_eos,
        num_logprobs=ask.output.num_logprobs,
        num_prompt_logprobs=ask.output.num_prompt_logprobs,
        logit_biases=sampling.logit_biases,
        allowed_token_ids=sampling.allowed_token_ids,
        grammar=grammar_of(ask, model.tokenizer),
        speculates=speculates,
    )
