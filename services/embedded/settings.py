"""Settings of `make run` and `make demo`, from environment variables with short names and without a prefix.

Everything that can be checked without loading a model is checked here.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.shared.configuration.registry import RedisUrl, some_profiles
from services.shared.configuration.values import Host, Text, TextPath
from services.shared.model.profiles import ProfileAmbiguous, ProfileCatalogue
from speaker_registry.errors import ProfileUnknown


class EmbeddedSettings(BaseSettings):
    """Settings of the embedded registry. Environment: HOST, PORT, DATA, PROFILES, WEIGHTS, REDIS_URL."""

    model_config = SettingsConfigDict(env_ignore_empty=True, frozen=True)

    host: Host = "127.0.0.1"
    """Address to listen on. Other addresses than loopback require API keys, and the first key is made in
    `DATA`.
    """
    port: int = Field(8300, ge=0, le=65535)
    """Port of the API. 0 takes any free port."""
    data: TextPath = Path("data")
    """Data folder. It contains `bucket/`, which holds everything, and `redis/`, which can be rebuilt from
    it.
    """
    profiles: Annotated[Text, StringConstraints(strip_whitespace=True)] = "qwen3-tts-0.6b"
    """Comma-separated names of the profiles."""
    weights: Text = "untrained"
    """Source of the weights: `untrained`, a folder, `hub`, or `hub:<commit>`."""
    redis_url: RedisUrl | None = None
    """URL of a Redis server that is already running. Without it, a server is started."""

    @property
    def profile_names(self) -> tuple[str, ...]:
        return _names(self.profiles)

    @field_validator("profiles")
    @classmethod
    def _known(cls, profiles: str) -> str:
        names = some_profiles(_names(profiles))
        try:
            ProfileCatalogue.load(names)
        except (ProfileUnknown, ProfileAmbiguous) as error:
            raise ValueError(error.message) from None
        return profiles

    @field_validator("weights")
    @classmethod
    def _absolute_folder(cls, weights: str) -> str:
        """Make a folder's path absolute, because the worker may run in another working directory."""
        if weights == "untrained" or weights.partition(":")[0] == "hub":
            return weights
        folder = Path(weights).expanduser().absolute()
        try:
            is_folder = folder.is_dir()
        except OSError as error:  # its name is too long, for example
            raise ValueError(f"this folder cannot be used: {error.strerror}") from None
        if not is_folder:
            raise ValueError(
                f"there is no folder {folder}; accepted: `untrained`, a folder, `hub` or `hub:<commit>`"
            )
        return str(folder)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
