"""The models that can be used now: which engine serves them, and their tokenizers.

Follows each engine for as long as the gateway runs: connects, reads what it serves, notices when it is gone or turns a
request away, reads again when it is back. A tokenizer is built off the event loop and kept while the model stays the
same. Several engines may serve the same model; the one with the fewest open calls takes the next request.
"""

import asyncio
from collections import abc
from dataclasses import dataclass

import structlog

from gateway.engine_client import EngineClient, ModelInfo
from gateway.errors import FieldViolation, GatewayError, InvalidFieldError, NoEngineError, cause_of
from gateway.errors_requests import ModelNotFoundError
from gateway.status import EngineReport, EngineStats
from gateway.tokenizer import SpecialTokens, Tokenizer, UnusableTokenizerError
from gateway.words import listed

RETRY_S = 0.2
# An engine that cannot be used at all is not asked five times a second, nor logged.
UNUSABLE_RETRY_S = 5.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model on one engine."""

    info: ModelInfo
    tokenizer: Tokenizer
    engine: EngineClient


class ServedModels:
    """All engines of one gateway. `changed` is called after an engine came or went."""

    def __init__(self, engines: abc.Sequence[EngineClient], changed: abc.Callable[[], None]) -> None:
        self._engines = tuple(engines)
        self._changed = changed
        self._ready: dict[str, ServedModel] = {}
        self._last_known: dict[str, ServedModel] = {}

    @property
    def is_serving(self) -> bool:
        """Whether any engine can take a request."""
        return bool(self._ready)

    @property
    def engines(self) -> tuple[EngineClient, ...]:
        return self._engines

    def model_name_at(self, address: str) -> str:
        """What the engine serves, or served last; empty before it first answered."""
        known = self._last_known.get(address)
        return known.info.name if known else ""

    async def reports(self) -> tuple[EngineReport, ...]:
        """What each engine says of itself now."""
        return tuple(await asyncio.gather(*(self._report(engine) for engine in self._engines)))

    async def stats(self) -> list[EngineStats]:
        """The figures of those that answer."""
        return [report.stats for report in await self.reports() if report.stats is not None]

    def granted(self, grants: abc.Set[str]) -> list[ModelInfo]:
        """The models that can be used now by a key with these grants (none: every model), by name."""
        by_name = {model.info.name: model.info for model in self._ready.values() if _is_granted(model, grants)}
        return [by_name[name] for name in sorted(by_name)]

    def resolve(self, name: str, grants: abc.Set[str], field: str) -> ServedModel:
        """The least busy engine that serves `name`, or the only model if that is empty; `field` is where it was named.

        Raises NoEngineError, ModelNotFoundError, and InvalidFieldError if no name was given and there are several.
        """
        usable = [model for model in self._in_order() if _is_granted(model, grants)]
        names = sorted({model.info.name for model in usable})
        if not name and len(names) > 1:
            raise InvalidFieldError(FieldViolation(field, f"several models are served: name one of {listed(names)}"))
        matching = [model for model in usable if name in ("", model.info.name)]
        if matching:
            return min(matching, key=_num_open_calls)
        away = [model for address, model in self._last_known.items() if address not in self._ready]
        is_away = any(name in ("", model.info.name) and _is_granted(model, grants) for model in away)
        if is_away or len(self._last_known) < len(self._engines):
            raise NoEngineError
        raise ModelNotFoundError(name, names)

    def least_busy(self, model: ServedModel) -> ServedModel:
        """The same model where it is least busy now; `model` where nobody serves it any more."""
        same = [each for each in self._in_order() if each.info == model.info]
        return min(same, key=_num_open_calls, default=model)

    async def run(self) -> None:
        """Follow every engine until cancelled."""
        async with asyncio.TaskGroup() as group:
            for engine in self._engines:
                group.create_task(self._follow(engine))

    def _in_order(self) -> list[ServedModel]:
        """In that of the setting: among equally busy engines the choice does not hang on who was up first."""
        return [self._ready[engine.address] for engine in self._engines if engine.address in self._ready]

    async def _report(self, engine: EngineClient) -> EngineReport:
        try:
            stats = await engine.stats()
        except NoEngineError:
            stats = None
        return EngineReport(engine.address, self.model_name_at(engine.address), stats)

    async def _follow(self, engine: EngineClient) -> None:
        while True:
            try:
                model = await self._connect(engine)
            except NoEngineError:
                await asyncio.sleep(RETRY_S)
                continue
            # Whatever it answers: one engine must not take the others, and the gateway, with it.
            except (GatewayError, UnusableTokenizerError) as error:
                log.error("engine cannot be used", address=engine.address, error=str(error), **cause_of(error))
                await asyncio.sleep(UNUSABLE_RETRY_S)
                continue
            self._ready[engine.address] = self._last_known[engine.address] = model
            log.info("engine ready", address=engine.address, model=model.info.name)
            self._changed()
            await engine.until_lost()
            del self._ready[engine.address]
            log.warning("engine lost", address=engine.address, model=model.info.name)
            self._changed()

    async def _connect(self, engine: EngineClient) -> ServedModel:
        await engine.require_open()
        info = await engine.model_info()
        known = self._last_known.get(engine.address)
        if known is not None and known.info == info:
            return known
        tokenizer = await asyncio.to_thread(
            Tokenizer.from_model_info,
            info.tokenizer_json,
            info.chat_template,
            SpecialTokens(
                bos_token_id=info.bos_token_id,
                eos_token_ids=info.eos_token_ids,
                pad_token_id=info.pad_token_id,
                unk_token_id=info.unk_token_id,
                add_bos_token=info.add_bos_token,
            ),
            info.context_tokens,
        )
        return ServedModel(info, tokenizer, engine)


def _num_open_calls(model: ServedModel) -> int:
    return model.engine.num_open_calls


def _is_granted(model: ServedModel, grants: abc.Set[str]) -> bool:
    return not grants or model.info.name in grants
