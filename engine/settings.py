"""The settings of `evenflow engine`: read once, frozen. Each field is a flag and an `EVENFLOW_ENGINE_*` variable.

`resolve` is the one pure place where an unset ("automatic") value becomes a number. Nothing here reads the machine:
what it offers comes in as an argument. Unknown, contradictory and malformed settings raise SettingsError.
"""

import os
from collections import abc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from engine.cache_settings import CacheSettings
from engine.core.config import (
    DEFAULT_MAX_PREEMPTIONS,
    DEFAULT_MIN_RESIDENT_STEPS,
    GROWTH_RESERVE_TOKENS,
    AdmissionReserve,
    PreemptionChoice,
    SchedulerConfig,
)
from engine.errors import SettingsError
from engine.loopback import parse_loopback
from engine.machine import DeviceMemory
from engine.speculation_settings import SpeculationSettings, check_speculation

if TYPE_CHECKING:  # it imports torch, which only the runner needs
    from engine.model.info import ModelInfo

ENV_PREFIX = "EVENFLOW_ENGINE_"

DEFAULT_CPU_BATCHED_TOKENS = 256  # a prompt's chunk delays each decode of its step: a fifth of a second on two cores
DEFAULT_CUDA_BATCHED_TOKENS = 2048
CPU_MEMORY_SHARE = 0.25  # the gateway, Postgres and the page cache live in the same memory
CUDA_MEMORY_SHARE = 0.85  # what a step's activations need must stay free
HOST_MEMORY_SHARE = 0.25  # on a CPU beside the device pool's, but only what was swapped out takes memory there
MAX_CPU_KV_CACHE_BYTES = 2 << 30  # 90,000 tokens of the default model; more is others' memory until it is asked for


METRICS_OFF = "off"
TAKEN_OVER = (  # by the scheduler as they are
    *("max_num_seqs", "block_size", "enable_chunked_prefill", "max_prefill_share", "growth_reserve_tokens"),
    *("partial_swap", "min_resident_steps", "max_preemptions", "link_share", "target_step_ms"),
    *("enable_prefix_caching", "cache_min_share", "cache_max_share", "max_drafting_seqs", "min_draft_acceptance"),
)


class EngineSettings(SpeculationSettings, CacheSettings):
    """Unset (None) means automatic. Flags win over the environment."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    listen: str = Field(description="unix:PATH, or HOST:PORT on a loopback address.")
    model: Path | None = Field(
        default=None,
        description="A GGUF file or a Hugging Face folder. Unset: the model that is installed as a package.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(default="auto", description="Data type of the computation.")
    quantization: Literal["none", "int8"] = Field(
        default="none", description="8-bit weights, and products in 8 bits: faster, and not quite the same. On a CPU."
    )
    batch_invariant: bool = Field(
        default=False, description="Tokens do not depend on what is computed beside a request, bit for bit. On a CPU."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where the model is computed.")
    cuda_graphs: bool = Field(default=True, description="Record decode steps at the start, and replay them. On CUDA.")
    num_threads: int | None = Field(
        default=None,
        ge=1,
        description="Compute threads. Unset: every core, less one for the gateway.",
    )
    scheduling_policy: str = Field(default="fair", description="Who is served next.")
    scheduling_option: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="NAME=VALUE for the scheduling policy; repeatable, in the environment separated by commas.",
    )
    preemption_policy: str = Field(default="over_served", description="Who loses blocks when they are short.")
    preemption_option: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="NAME=VALUE for the preemption policy; repeatable, in the environment separated by commas.",
    )
    max_num_seqs: int = Field(default=64, ge=1, description="Sequences that one step may hold.")
    max_num_batched_tokens: int | None = Field(
        default=None, ge=1, description="Tokens that one step may hold. Unset: 256 on a CPU, 2048 on CUDA."
    )
    block_size: int = Field(default=16, ge=1, description="Tokens of one KV block.")
    num_device_blocks: int | None = Field(
        default=None, ge=1, description="KV blocks of the device pool. Unset: what a share of the free memory holds."
    )
    kv_cache_bytes: int | None = Field(
        default=None, ge=1, description="The device pool's size in bytes, instead of in blocks."
    )
    num_host_blocks: int | None = Field(
        default=None,
        ge=0,
        description="KV blocks of the host pool, for sequences that are swapped out. Unset: as many as the device pool"
        " has, as far as a share of the free main memory goes.",
    )
    host_cache_bytes: int | None = Field(
        default=None, ge=0, description="The host pool's size in bytes, instead of in blocks."
    )
    enable_chunked_prefill: bool = Field(default=True, description="Spread long prompts over several steps.")
    max_prefill_share: float = Field(
        default=1.0, gt=0, le=1, description="Largest part of a step that one prompt may take while others want tokens."
    )
    target_step_ms: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="Longest step that prompts may make. 0: no limit."
    )
    admission_reserve: Literal["growth", "peak", "whole"] = Field(
        default="growth",
        description="Room that is kept for the output of running requests: some tokens for each, the most that all of"
        " them can come to hold, or each to its limit (no-evict: nothing is preempted for want of blocks).",
    )
    growth_reserve_tokens: int = Field(
        default=GROWTH_RESERVE_TOKENS, ge=0, description="Tokens for each with admission_reserve growth."
    )
    preemption_mode: Literal["auto", "swap", "recompute"] = Field(
        default="auto",
        description="What becomes of a victim's blocks: copied to the host pool, computed again, or what costs less.",
    )
    partial_swap: bool = Field(default=True, description="Move only as many blocks of a victim as are needed.")
    min_resident_steps: int = Field(
        default=DEFAULT_MIN_RESIDENT_STEPS,
        ge=0,
        description="Steps for which a request that has come in is protected from preemption.",
    )
    max_preemptions: int = Field(
        default=DEFAULT_MAX_PREEMPTIONS,
        ge=0,
        description="Times after which a request inside its share is no longer preempted.",
    )
    link_share: float = Field(
        default=1.0, gt=0, le=1, description="Largest part of the time for which blocks may be copied in one direction."
    )
    decision_log: Path | None = Field(
        default=None,
        description="A file that everything the scheduler decides by is written to, for a replay. It holds no text.",
    )
    grace_s: float = Field(
        default=30.0, ge=0, description="Seconds that running requests may still take after SIGTERM."
    )
    metrics_listen: str = Field(
        default="127.0.0.1:0",
        description="HOST:PORT on loopback for Prometheus; port 0: a free one; off: none.",
    )
    parent_pid: int | None = Field(
        default=None, ge=1, description="The process that starts this one: shut down when it has ended."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        default="auto", description="Form of the log on stderr. auto: console on a terminal, json elsewhere."
    )

    @field_validator("metrics_listen")
    @classmethod
    def _check_metrics_listen(cls, value: str) -> str:
        parse_metrics_listen(value)
        return value

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of the page for Prometheus; None: there is none."""
        return parse_metrics_listen(self.metrics_listen)

    @field_validator("scheduling_option", "preemption_option", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings


def read_settings(flags: abc.Mapping[str, object]) -> EngineSettings:
    """The settings of the process, from flags (None: not given) over the environment. Raises SettingsError."""
    known = {ENV_PREFIX + name.upper() for name in EngineSettings.model_fields}
    for variable in sorted(os.environ):
        if variable.startswith(ENV_PREFIX) and variable not in known:
            raise SettingsError(variable, "is no setting of the engine")
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}  # judged by pydantic
    try:
        settings = EngineSettings(**given)
    except ValidationError as error:
        raise _settings_error(error) from None
    if settings.num_device_blocks is not None and settings.kv_cache_bytes is not None:
        raise SettingsError("kv_cache_bytes", "contradicts num_device_blocks: give one of the two")
    if settings.num_host_blocks is not None and settings.host_cache_bytes is not None:
        raise SettingsError("host_cache_bytes", "contradicts num_host_blocks: give one of the two")
    check_speculation(settings)
    return settings


def parse_metrics_listen(text: str) -> tuple[str, int] | None:
    """Host and port; None where it is `off`. Raises ValueError for what is no address, or none of loopback."""
    return None if text == METRICS_OFF else parse_loopback(text)


def policy_options(setting: str, pairs: abc.Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` pairs as a mapping. Raises SettingsError, naming `setting`, where one is malformed or repeated."""
    options: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise SettingsError(setting, f"must be NAME=VALUE, not {pair!r}")
        if name in options:
            raise SettingsError(setting, f"gives {name} twice")
        options[name] = value
    return options


def resolve_num_threads(settings: EngineSettings, num_cores: int) -> int:
    """Compute threads. A core is left to the gateway: every parallel region waits for its last thread to get one."""
    if settings.num_threads is not None:
        return settings.num_threads
    return max(1, num_cores - 1)


def resolve(
    settings: EngineSettings, model: "ModelInfo", memory: DeviceMemory, host_memory: DeviceMemory
) -> SchedulerConfig:
    """The scheduler's settings for `model`, with `memory` of the device left after loading it, and `host_memory`, which
    is the same on a CPU. Raises SettingsError."""
    num_device_blocks = _num_device_blocks(settings, model, memory)
    try:
        return SchedulerConfig(
            **{name: getattr(settings, name) for name in TAKEN_OVER},
            max_num_batched_tokens=_max_num_batched_tokens(settings, model, memory),
            num_device_blocks=num_device_blocks,
            max_model_len=model.context_tokens,
            admission_reserve=AdmissionReserve(settings.admission_reserve),
            num_host_blocks=_num_host_blocks(settings, model, host_memory, num_device_blocks),
            preemption_mode=PreemptionChoice(settings.preemption_mode),
            num_draft_tokens=settings.drafts_per_step,
        )
    except ValueError as error:
        setting, _, problem = str(error).partition(" ")
        raise SettingsError(setting, problem) from None


def _max_num_batched_tokens(settings: EngineSettings, model: "ModelInfo", memory: DeviceMemory) -> int:
    if settings.max_num_batched_tokens is not None:
        return settings.max_num_batched_tokens
    usual = DEFAULT_CUDA_BATCHED_TOKENS if memory.device_type == "cuda" else DEFAULT_CPU_BATCHED_TOKENS
    whole_prompt = 0 if settings.enable_chunked_prefill else model.context_tokens
    return max(usual, whole_prompt, settings.max_num_seqs)


def _num_device_blocks(settings: EngineSettings, model: "ModelInfo", memory: DeviceMemory) -> int:
    if settings.num_device_blocks is not None:
        return settings.num_device_blocks
    block_bytes = settings.block_size * model.kv_bytes_per_token
    if settings.kv_cache_bytes is not None:
        if settings.kv_cache_bytes < block_bytes:
            raise SettingsError("kv_cache_bytes", f"must hold at least one block of {block_bytes} bytes")
        return settings.kv_cache_bytes // block_bytes
    # More than every row at full context can never be used.
    usable = settings.max_num_seqs * -(-model.context_tokens // settings.block_size)
    num_blocks = min(usable, _kv_cache_bytes(memory) // block_bytes)
    if num_blocks < 1:
        raise SettingsError(
            "num_device_blocks", f"must be given: {memory.free_bytes} free bytes are too few for a pool"
        )
    return num_blocks


def _num_host_blocks(
    settings: EngineSettings, model: "ModelInfo", host_memory: DeviceMemory, num_device_blocks: int
) -> int:
    if settings.num_host_blocks is not None:
        return settings.num_host_blocks
    block_bytes = settings.block_size * model.kv_bytes_per_token
    if settings.host_cache_bytes is not None:
        return settings.host_cache_bytes // block_bytes
    if settings.preemption_mode == "recompute":
        return 0
    return min(num_device_blocks, int(host_memory.free_bytes * HOST_MEMORY_SHARE) // block_bytes)


def _kv_cache_bytes(memory: DeviceMemory) -> int:
    if memory.device_type == "cuda":
        return int(memory.free_bytes * CUDA_MEMORY_SHARE)
    return min(int(memory.free_bytes * CPU_MEMORY_SHARE), MAX_CPU_KV_CACHE_BYTES)


def _settings_error(error: ValidationError) -> SettingsError:
    """The first problem, in the words of the setting. The value is shown: no setting of the engine is a secret."""
    problem = error.errors(include_url=False)[0]
    setting = str(problem["loc"][0])
    if problem["type"] == "missing":
        return SettingsError(setting, "is required")
    return SettingsError(setting, f"{problem['msg'].replace('Input should be', 'must be')}, not {problem['input']!r}")
