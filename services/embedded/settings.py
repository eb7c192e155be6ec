"""What `make run` and `make demo` can be told. Environment: the names without a prefix, as short as they are
typed. What can be found wrong without loading a model is found here.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.shared.model.profiles import ProfileAmbiguous, ProfileCatalogue
from speaker_registry.errors import ProfileUnknown


class EmbeddedSettings(BaseSettings):
    """The registry on one machine, by `make run`.

    Environment: HOST, PORT, DATA, PROFILES, WEIGHTS, REDIS_URL.
    """

    model_config = SettingsConfigDict(env_ignore_empty=True, frozen=True)

    host: str = "127.0.0.1"
    """Beyond loopback with API keys: the first is made and kept in `DATA`."""
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

    @property
    def profile_names(self) -> tuple[str, ...]:
        return _names(self.profiles)

    @field_validator("profiles")
    @classmethod
    def _known(cls, profiles: str) -> str:
        names = _names(profiles)
        if not names:
            raise ValueError("no profile is named")
        try:
            ProfileCatalogue.load(names)
        except (ProfileUnknown, ProfileAmbiguous) as error:
            raise ValueError(error.message) from None
        return profiles

    @field_validator("weights")
    @classmethod
    def _a_folder_if_anything(cls, weights: str) -> str:
        """A folder's name becomes absolute: the worker need not start where we do."""
        if weights == "untrained" or weights.partition(":")[0] == "hub":
            return weights
        folder = Path(weights).expanduser().absolute()
        if not folder.is_dir():
            raise ValueError(
                f"there is no folder {folder}; `untrained`, a folder, `hub` or `hub:<commit>` is expected"
            )
        return str(folder)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
