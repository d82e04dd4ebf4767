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

from engine.core.config import SchedulerConfig
from engine.errors import SettingsError
from engine.machine import DeviceMemory

if TYPE_CHECKING:  # it imports torch, which only the runner needs
    from engine.model.info import ModelInfo

ENV_PREFIX = "EVENFLOW_ENGINE_"

DEFAULT_CPU_BATCHED_TOKENS = 256  # a prompt's chunk delays each decode of its step: a fifth of a second on two cores
DEFAULT_CUDA_BATCHED_TOKENS = 2048
CPU_MEMORY_SHARE = 0.25  # the gateway, Postgres and the page cache live in the same memory
CUDA_MEMORY_SHARE = 0.85  # what a step's activations need must stay free
MAX_CPU_KV_CACHE_BYTES = 2 << 30  # 90,000 tokens of the default model; clearing more would only make the start slow


class EngineSettings(BaseSettings):
    """Unset (None) means automatic. Flags win over the environment."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    listen: str = Field(description="unix:PATH, or HOST:PORT on a loopback address.")
    model: Path | None = Field(
        default=None,
        description="A GGUF file or a Hugging Face folder. Unset: the model that is installed as a package.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(default="auto", description="Data type of the computation.")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where the model is computed.")
    num_threads: int | None = Field(
        default=None,
        ge=1,
        description="Compute threads. Unset: every core, less one for the gateway.",
    )
    scheduling_policy: str = Field(default="vtc", description="Who is served next.")
    scheduling_option: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="NAME=VALUE for the scheduling policy; repeatable, in the environment separated by commas.",
    )
    preemption_policy: str = Field(default="latest_arrival", description="Who loses blocks when they are short.")
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
    enable_chunked_prefill: bool = Field(default=True, description="Spread long prompts over several steps.")
    max_prefill_share: float = Field(
        default=1.0, gt=0, le=1, description="Largest part of a step that one prompt may take while others want tokens."
    )
    grace_s: float = Field(
        default=30.0, ge=0, description="Seconds that running requests may still take after SIGTERM."
    )
    parent_pid: int | None = Field(
        default=None, ge=1, description="The process that starts this one: shut down when it has ended."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        default="auto", description="Form of the log on stderr. auto: console on a terminal, json elsewhere."
    )

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
    return settings


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


def resolve(settings: EngineSettings, model: "ModelInfo", memory: DeviceMemory) -> SchedulerConfig:
    """The scheduler's settings for `model` on a device with `memory` left after loading it. Raises SettingsError."""
    try:
        return SchedulerConfig(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=_max_num_batched_tokens(settings, model, memory),
            block_size=settings.block_size,
            num_device_blocks=_num_device_blocks(settings, model, memory),
            max_model_len=model.context_tokens,
            enable_chunked_prefill=settings.enable_chunked_prefill,
            max_prefill_share=settings.max_prefill_share,
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
