"""Tests of how a store is named in the environment, and of which mistakes are found before anything
starts.
"""

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from services.shared.configuration.store import StoreSettings

BUCKET = "s3://voices/team/a"


def test_a_local_folder_is_named_by_its_url() -> None:
    """Spaces are written as in any URL."""
    assert StoreSettings(url="file:///var/lib/my%20voices/").folder == Path("/var/lib/my voices")


def test_a_bucket_is_named_by_its_url_with_a_prefix() -> None:
    """Several registries may share a bucket."""
    settings = StoreSettings(url=BUCKET)
    assert (settings.folder, settings.bucket, settings.prefix) == (None, "voices", "team/a")
    assert StoreSettings(url="s3://voices").prefix == ""


@pytest.mark.parametrize(
    "url",
    [
        "",
        "voices",
        "/var/lib/voices",
        "file://voices",
        "file://host/voices",
        "file:///",
        "file:///a?b",
        "s3://",
        "s3://Voices",
        "s3://v",
        "s3://voices//a",
        "s3://voices/.tmp",
        "s3://voices/ü",
        "http://voices",
        "s3://voices/" + "a" * 300,
    ],
)
def test_any_other_url_is_refused(url: str) -> None:
    """The start fails and says what is expected, instead of storing somewhere else."""
    expected = "expected file:///folder or s3://bucket/prefix: the bucket's name has 3 to 63 characters"
    with pytest.raises(ValidationError, match=expected):
        StoreSettings(url=url)


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The secret is in a file, as container secrets are mounted. An empty variable counts as not set."""
    (tmp_path / "secret").write_text("s3cret\n")
    monkeypatch.setenv("SPEAKER_STORE_URL", BUCKET)
    monkeypatch.setenv("SPEAKER_STORE_ENDPOINT", "https://s3.example.org")
    monkeypatch.setenv("SPEAKER_STORE_REGION", "")
    monkeypatch.setenv("SPEAKER_STORE_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("SPEAKER_STORE_SECRET_ACCESS_KEY_FILE", str(tmp_path / "secret"))
    settings = StoreSettings()  # type: ignore[call-arg]  # from the environment
    assert settings.bucket == "voices"
    assert settings.region is None
    assert settings.secret == "s3cret"


def test_the_secret_is_never_printed() -> None:
    """Settings end up in logs and error messages."""
    settings = StoreSettings(url=BUCKET, access_key_id="key", secret_access_key=SecretStr("s3cret"))
    assert settings.secret == "s3cret"
    assert "s3cret" not in f"{settings!r} {settings}"


@pytest.mark.parametrize("keys", [{"access_key_id": "key"}, {"secret_access_key": "s3cret"}])
def test_half_a_pair_of_keys_is_refused(keys: dict[str, str]) -> None:
    """It would be ignored in favour of whatever boto3 finds."""
    with pytest.raises(ValidationError, match="go together"):
        StoreSettings.model_validate({"url": BUCKET, **keys})


@pytest.mark.parametrize(
    "host", ["https://s3.example.org", "http://127.0.0.1:9000", "http://localhost:1", "http://[::1]:1"]
)
def test_an_endpoint_where_nobody_listens_in_is_taken(host: str) -> None:
    """TLS, or this very machine."""
    assert StoreSettings(url=BUCKET, endpoint=host).endpoint == host


@pytest.mark.parametrize(
    "host", ["http://s3.example.org", "http://10.0.0.7:9000", "http://127.0.0.1.example.org"]
)
def test_plain_http_to_another_machine_has_to_be_asked_for(host: str) -> None:
    """Voices would cross the network in the clear."""
    with pytest.raises(ValidationError, match="set SPEAKER_STORE_ALLOW_HTTP=true"):
        StoreSettings(url=BUCKET, endpoint=host)
    assert StoreSettings(url=BUCKET, endpoint=host, allow_http=True).endpoint == host
