"""The settings of the prefix cache: a part of `EngineSettings`. Pure; the scheduler takes them over as they are."""

from pydantic import Field
from pydantic_settings import BaseSettings

from engine.core.config import DEFAULT_CACHE_MIN_SHARE


class CacheSettings(BaseSettings):
    """A hit changes when tokens come, never which."""

    enable_prefix_caching: bool = Field(default=True, description="Compute once what a tenant's prompts begin with.")
    cache_min_share: float = Field(
        default=DEFAULT_CACHE_MIN_SHARE,
        ge=0,
        le=1,
        description="Part of a pool up to which a tenant's is evicted last.",
    )
    cache_max_share: float = Field(
        default=1.0, ge=0, le=1, description="Largest part of the device pool that a tenant's unused cache may take."
    )
