"""What whoever sets a variable is told when its value is none that we take."""

from typing import Any

import pytest
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.embedded.settings import EmbeddedSettings
from services.shared.settings import (
    LogSettings,
    RegistrySettings,
    StoreSettings,
    UploadLimits,
    explain,
)


class Guarded(BaseSettings):
    """With what must not be seen."""

    model_config = SettingsConfigDict(env_prefix="GUARDED_", env_ignore_empty=True)

    api_key: str = Field("", max_length=3)
    word: SecretStr | None = Field(None, max_length=3)
    url: str = Field("", max_length=3)


def told(settings: type[BaseSettings], **given: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        settings.model_validate(given)
    return explain(caught.value)


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch):
    """Compose files pass variables on that nobody has set."""
    for name in UploadLimits.model_fields:
        monkeypatch.setenv(f"SPEAKER_UPLOAD_{name.upper()}", "")
    assert UploadLimits().max_bytes == 10 * 1024**2


def test_a_wrong_value_is_shown(monkeypatch: pytest.MonkeyPatch):
    """It may come from a file that whoever reads the message has not opened yet."""
    monkeypatch.setenv("SPEAKER_UPLOAD_MAX_BYTES", "10MB")
    monkeypatch.setenv("SPEAKER_UPLOAD_DECODERS", "0")
    with pytest.raises(ValidationError) as caught:
        UploadLimits()
    assert explain(caught.value).splitlines() == [
        "SPEAKER_UPLOAD_MAX_BYTES: Input should be a valid integer, unable to parse string as an integer; "
        "it is '10MB'",
        "SPEAKER_UPLOAD_DECODERS: Input should be greater than 0; it is '0'",
    ]
    assert told(LogSettings, level="LOUD").endswith("it is 'LOUD'")
    assert told(RegistrySettings, SPEAKER_MAX_ATTEMPTS="9").startswith("SPEAKER_MAX_ATTEMPTS: ")


def test_a_value_is_not_told_twice():
    """Our own messages name it."""
    said = told(EmbeddedSettings, profiles="qwen3")
    assert said.count("'qwen3'") == 1


@pytest.mark.parametrize("name", ["api_key", "word"])
def test_what_may_be_a_secret_is_not_shown(name: str):
    """By its name, or by its type: the line goes to a log."""
    assert "hunter2" not in told(Guarded, **{name: "hunter2"})


def test_credentials_in_a_url_are_not_shown():
    """Some tools take them there, so somebody will try it with ours."""
    shown = told(StoreSettings, url="s3://key:sec/ret@voices")
    assert shown.endswith("it is 's3://…@voices'")


def test_of_settings_that_contradict_each_other_only_the_message_is_shown():
    """What pydantic has as their value is everything that was given."""
    said = told(StoreSettings, url="s3://voices", secret_access_key="hunter2")
    assert said == "access_key_id and secret_access_key (or its file) go together"


def test_what_is_missing_has_no_value():
    assert told(StoreSettings) == "SPEAKER_STORE_URL: Field required"
