"""What `make run` and `make demo` can be told. Environment: the names without a prefix, as short as they are
typed.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints
from pydantic_settings import BaseSettings, SettingsConfigDict


class EmbeddedSettings(BaseSettings):
    """The registry on one machine, by `make run`. Environment: HOST, PORT, DATA, PROFILES, WEIGHTS,
    REDIS_URL.
    """

    model_config = SettingsConfigDict(env_ignore_empty=True, frozen=True)

    host: str = "127.0.0.1"
    """Loopback only: there are no API keys yet."""
    port: int = Field(8300, ge=0, le=65535)
    """0: any free one."""
    data: Path = Path("data")
    """Holds `bucket/`, the truth, and `redis/`, which can be rebuilt from it."""
    profiles: Annotated[str, StringConstraints(strip_whitespace=True)] = "qwen3-tts-0.6b"
    """Comma-separated."""
    weights: str = "untrained"
    """`untrained`, a folder, `hub`, or `hub:<commit>`."""
    redis_url: str | None = None
    """A server that runs already; else one is started."""
