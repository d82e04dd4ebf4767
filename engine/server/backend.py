"""The model and its runner, loaded and measured on the engine's thread. The only place that brings torch in."""

import gc
import os
from collections import abc
from dataclasses import asdict, dataclass
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
    from engine.model.info import ModelInfo

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """What computes, what it computes, the limits that follow from both and the machine, and what a step takes here.

    Without a `calibrator` the scheduler reckons with prices that fit no machine in particular.
    """

    runner: Runner
    model: "ModelInfo"
    config: SchedulerConfig
    calibrator: "Calibrator | None" = None


def load_backend(settings: EngineSettings, on_progress: abc.Callable[[float], None]) -> Backend:
    """The model of `settings`, ready to run; `on_progress` gets the part that is loaded, 0 to 1. Measuring it takes
    about two seconds on a CPU.

    Raises ModelError, and SettingsError where the settings do not fit the model or the machine.
    """
    num_threads = resolve_num_threads(settings, machine.num_cores())
    # Read when the OpenMP library is loaded; it then holds for threads that torch does not know of, too.
    os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = str(num_threads)
    import torch

    from engine.model.loader import load_model
    from engine.runner.measurement import measure
    from engine.runner.model_runner import ModelRunner

    torch.set_num_threads(num_threads)
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise SettingsError("device", "is cuda, but there is no CUDA device")
    check_batch_invariant(settings, has_cuda=torch.cuda.is_available())
    loaded = load_model(
        settings.model,
        dtype=settings.dtype,
        device=settings.device,
        quantization=_quantization(settings, has_cuda=torch.cuda.is_available()),
        on_progress=on_progress,
    )
    config = resolve(settings, loaded.info, _free_memory(loaded.device.type), machine.cpu_memory())
    runner = ModelRunner(loaded, config, cuda_graphs=settings.cuda_graphs, batch_invariant=settings.batch_invariant)
    runner.warm_up()
    calibrator = measure(runner, config)
    log.info("measured", **_figures(calibrator.prices))
    # Torch alone brings hundreds of thousands of objects that never die; no collection has to walk them again.
    gc.collect()
    gc.freeze()
    return Backend(runner, loaded.info, config, calibrator)


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
