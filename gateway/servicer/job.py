"""What a generation is made of, once it is admitted."""

from dataclasses import dataclass

from gateway.admission_terms import Admitted
from gateway.auth import Principal
from gateway.engine_client import EngineRequest
from gateway.servicer.ask import ChatPrompt, GenerationAsk
from gateway.servicer.served_models import ServedModel
from gateway.tokenizer import OutputText


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that is settled before the engine is called. `give_up_at_s` is on the event loop's clock."""

    principal: Principal
    ask: GenerationAsk
    model: ServedModel
    admitted: Admitted
    request: EngineRequest
    give_up_at_s: float | None

    @property
    def generation_id(self) -> str:
        return self.request.generation_id

    @property
    def deadline_ns(self) -> int | None:
        """What the engine was given, from the request's arrival there."""
        return self.request.deadline_ns


def new_text(job: Job) -> OutputText:
    """What the text of one output comes from."""
    return OutputText(job.model.tokenizer, job.ask.stopping.stop, _hidden_token_ids(job))


def _hidden_token_ids(job: Job) -> frozenset[int]:
    """Special tokens and those that end the output are counted and not shown, but for what calls are found by."""
    tokenizer, prompt = job.model.tokenizer, job.ask.prompt
    shown = tokenizer.tool_token_ids if isinstance(prompt, ChatPrompt) and prompt.offered_tools else frozenset()
    return (tokenizer.special_token_ids - shown) | frozenset(job.ask.stopping.stop_token_ids)
