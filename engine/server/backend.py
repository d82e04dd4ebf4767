"""The model and its runner, loaded and measured on the engine's thread. The only place that brings torch in."""

import gc
import json
import os
from collections import abc
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import structlog

from engine import machine
from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.errors import SettingsError
from engine.loop import Runner
from engine.machine import DeviceMemory
from engine.settings import EngineSettings, resolve, resolve_num_threads

if TYPE_CHECKING:  # they import torch, or numpy
    from engine.calibration import Calibrator
    from engine.model.info import LoadedModel, ModelInfo
    from engine.runner.model_runner import ModelRunner
    from engine.runner.proposers import DraftSource

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """What computes, what it computes, the limits that follow from both and the machine, and what a step takes here.

    Without a `calibrator` the scheduler reckons with prices that fit no machine in particular. `draft_model` is the
    name of the model that proposes drafts, empty if none does.
    """

    runner: Runner
    model: "ModelInfo"
    config: SchedulerConfig
    calibrator: "Calibrator | None" = None
    draft_model: str = ""


def load_backend(settings: EngineSettings, on_progress: abc.Callable[[float], None]) -> Backend:
    """The model of `settings`, ready to run; `on_progress` gets the part that is loaded, 0 to 1. Measuring it takes
    about a second on a CPU.

    Raises ModelError, and SettingsError where the settings do not fit the model or the machine.
    """
    with _uncollected():
        return _load(settings, on_progress)


@contextmanager
def _uncollected() -> abc.Iterator[None]:
    """What is made here never dies: torch alone brings hundreds of thousands of objects, which no collection has to
    walk while they come in, nor ever again."""
    gc.disable()
    try:
        yield
        gc.collect()
        gc.freeze()
    finally:
        gc.enable()


def _load(settings: EngineSettings, on_progress: abc.Callable[[float], None]) -> Backend:
    _set_num_threads(resolve_num_threads(settings, machine.num_cores()))
    from engine.runner.draft_measurement import measure_draft_ns
    from engine.runner.measurement import measure

    loaded = _load_target(settings, on_progress)
    draft = load_draft_model(settings, loaded)
    sized = loaded.info if draft is None else _with_draft(loaded.info, draft.info)
    config = resolve(settings, sized, _free_memory(loaded.device.type), machine.cpu_memory())
    runner = _warm_runner(settings, config, loaded, draft)
    calibrator = measure(runner, config)
    if draft is not None:
        config = replace(config, draft_token_ns=measure_draft_ns(runner, config))
    log.info("measured", **_figures(calibrator.prices))
    return Backend(runner, loaded.info, config, calibrator, "" if draft is None else draft.info.name)


def _set_num_threads(num_threads: int) -> None:
    """Brings torch in."""
    # Read when the OpenMP library is loaded; it then holds for threads that torch does not know of, too.
    os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = str(num_threads)
    import torch

    torch.set_num_threads(num_threads)


def _load_target(settings: EngineSettings, on_progress: abc.Callable[[float], None]) -> "LoadedModel":
    """The model that is served. Raises ModelError, and SettingsError where the device does not do what is asked for."""
    import torch

    from engine.model.loader import load_model

    has_cuda = torch.cuda.is_available()
    if settings.device == "cuda" and not has_cuda:
        raise SettingsError("device", "is cuda, but there is no CUDA device")
    check_batch_invariant(settings, has_cuda=has_cuda)
    return load_model(
        settings.model,
        dtype=settings.dtype,
        device=settings.device,
        quantization=_quantization(settings, has_cuda=has_cuda),
        on_progress=on_progress,
    )


def _warm_runner(
    settings: EngineSettings, config: SchedulerConfig, loaded: "LoadedModel", draft: "LoadedModel | None"
) -> "ModelRunner":
    from engine.runner.model_runner import ModelRunner

    runner = ModelRunner(
        loaded,
        config,
        _draft_source(settings, draft),
        cuda_graphs=settings.cuda_graphs,
        batch_invariant=settings.batch_invariant,
    )
    runner.warm_up()
    return runner


def load_draft_model(settings: EngineSettings, target: "LoadedModel") -> "LoadedModel | None":
    """The model that proposes drafts for `target`, on its device and in its dtype; None if none is named.

    Raises ModelError, and SettingsError if the two do not have the same vocabulary.
    """
    if settings.draft_model is None:
        return None
    from engine.model.loader import load_model

    dtype = str(target.dtype).removeprefix("torch.")
    draft = load_model(settings.draft_model, dtype=dtype, device=target.device.type)
    if _vocabulary(draft.info) != _vocabulary(target.info):
        raise SettingsError(
            "draft_model", f"has another vocabulary than {target.info.name}: its tokens mean other text"
        )
    return draft


def _vocabulary(model: "ModelInfo") -> tuple[int, object]:
    """The number of tokens, and each one's text and id."""
    return model.vocabulary_size, json.loads(model.tokenizer_json)["model"]["vocab"]


def _with_draft(model: "ModelInfo", draft: "ModelInfo") -> "ModelInfo":
    """`model`, of which each cached token needs room for the draft model's keys and values, too."""
    return replace(model, kv_bytes_per_token=model.kv_bytes_per_token + draft.kv_bytes_per_token)


def _draft_source(settings: EngineSettings, draft: "LoadedModel | None") -> "DraftSource | None":
    from engine.runner.proposers import ModelDrafts, NgramDrafts

    if draft is not None:
        return ModelDrafts(draft)
    return NgramDrafts(settings.ngram_min_tokens) if settings.speculation == "ngram" else None


def _quantization(settings: EngineSettings, *, has_cuda: bool) -> str | None:
    """Raises SettingsError where the device does not compute what is asked for."""
    if settings.quantization == "none":
        return None
    if _is_for_cuda(settings, has_cuda=has_cuda):
        raise SettingsError("quantization", f"{settings.quantization} is computed on a CPU only: add device cpu")
    return settings.quantization


def check_batch_invariant(settings: EngineSettings, *, has_cuda: bool) -> None:
    """Raises SettingsError where such steps are asked for and the device does not compute them."""
    if settings.batch_invariant and _is_for_cuda(settings, has_cuda=has_cuda):
        raise SettingsError("batch_invariant", "is computed on a CPU only: add device cpu")


def _is_for_cuda(settings: EngineSettings, *, has_cuda: bool) -> bool:
    return settings.device == "cuda" or (settings.device == "auto" and has_cuda)


def _figures(prices: Prices) -> dict[str, float]:
    copies = {name: ns for name, ns in asdict(prices).items() if name.startswith("copy_")}
    return {name: round(ns, 1) for name, ns in (copies | asdict(prices.step)).items()}


def _free_memory(device_type: str) -> DeviceMemory:
    if device_type == "cpu":
        return machine.cpu_memory()
    import torch

    free_bytes, _ = torch.cuda.mem_get_info()
    return DeviceMemory(device_type, free_bytes)
