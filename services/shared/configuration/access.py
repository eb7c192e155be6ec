"""Settings for access to the API, and for its rate limits."""

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.shared.configuration.api import ApiSettings
from services.shared.configuration.values import (
    WITH_HOST,
    Count,
    Secret,
    SecretFile,
    is_private,
    refuse_both,
    secret_of,
    without_credentials,
)


class AccessSettings(BaseSettings):
    """Settings that decide who may call the API. Environment: SPEAKER_AUTH_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_AUTH_", env_ignore_empty=True, frozen=True)

    required: bool | None = None
    """Require a key for requests. If this is not set, a key is required when the API listens beyond loopback,
    when a proxy is configured, and when a bootstrap key or an OpenID provider is set.
    """
    bootstrap_key: Secret | None = None
    """API key with all rights, used to make other keys. A file is safer."""
    bootstrap_key_file: SecretFile | None = None
    """File that holds the API key with all rights, such as a mounted container secret. `python -m
    services.registry_api new-key --out FILE` writes one that only its owner can read.
    """
    oidc_issuer: Annotated[str, Field(pattern=r"^https?://[^?#\s]+[^/?#\s]/?$"), WITH_HOST] | None = None
    """URL of an OpenID provider whose JWTs are accepted as well as API keys. Write it as the `iss` claim of
    the JWTs has it: some providers end it with a slash.
    """
    oidc_audience: str | None = None
    """Audience that the `aud` claim of a JWT must name. Must be set together with the issuer."""
    oidc_namespace_claim: str = Field("speaker_namespace", min_length=1)
    """Claim of a JWT that names the namespace. A token without it belongs to `default`."""
    oidc_scopes_claim: str = Field("scope", min_length=1)
    """Claim of a JWT that holds the scopes, as a list or separated by spaces. Unknown scopes are ignored."""
    oidc_client_id: str | None = Field(default=None, min_length=1, max_length=512)
    """Id of this registry's dashboard as a client of the OpenID provider. With it, people sign in to the
    dashboard at the provider.
    """
    oidc_client_secret: Secret | None = None
    """Secret of that client, if the provider gave it one. A file is safer."""
    oidc_client_secret_file: SecretFile | None = None
    """File that holds the secret of that client, such as a mounted container secret."""
    oidc_sign_in_scopes: str = Field("openid", pattern=r"(^|.* )openid( .*|$)")
    """Scopes that the dashboard asks the provider for, separated by spaces. `openid` must be among them."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse_both("SPEAKER_AUTH_BOOTSTRAP_KEY", self.bootstrap_key, self.bootstrap_key_file)
        if bool(self.oidc_issuer) != bool(self.oidc_audience):
            raise ValueError(
                "SPEAKER_AUTH_OIDC_ISSUER and SPEAKER_AUTH_OIDC_AUDIENCE go together: one of them is missing"
            )
        if self.oidc_client_id and not self.oidc_issuer:
            raise ValueError("SPEAKER_AUTH_OIDC_CLIENT_ID needs SPEAKER_AUTH_OIDC_ISSUER, which is missing")
        refuse_both("SPEAKER_AUTH_OIDC_CLIENT_SECRET", self.oidc_client_secret, self.oidc_client_secret_file)
        if self.oidc_issuer and not is_private(self.oidc_issuer):
            raise ValueError(
                f"SPEAKER_AUTH_OIDC_ISSUER: {without_credentials(self.oidc_issuer)} is plain http on another "
                "machine; use https"
            )
        return self

    @property
    def bootstrap(self) -> str | None:
        """Return the key with all rights, whether it was given directly or in a file."""
        return secret_of(self.bootstrap_key, self.bootstrap_key_file)

    @property
    def client_secret(self) -> str | None:
        """Return the secret of the dashboard as a client, whether it was given directly or in a file."""
        return secret_of(self.oidc_client_secret, self.oidc_client_secret_file)

    def why_required_at(self, api: ApiSettings) -> str | None:
        """Return the setting that makes requests need a key, or None if they need none.

        Raises:
            ValueError: requests need no key, although strangers could send requests.
        """
        if self.required is False:
            self._check_loopback_only(api)
            return None
        reasons = {
            "SPEAKER_AUTH_REQUIRED is true": self.required,
            f"SPEAKER_API_HOST is {api.host!r}, which is not loopback": not api.loopback,
            # A proxy may forward requests of any client.
            "SPEAKER_API_TRUSTED_PROXIES is set": api.trusted_proxies,
            "SPEAKER_AUTH_BOOTSTRAP_KEY (or its file) is set": self.bootstrap is not None,
            "SPEAKER_AUTH_OIDC_ISSUER is set": self.oidc_issuer,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _check_loopback_only(self, api: ApiSettings) -> None:
        if not api.loopback:
            raise ValueError(
                f"SPEAKER_API_HOST is {api.host!r} and SPEAKER_AUTH_REQUIRED is false: without API keys the "
                "registry listens on loopback only (127.0.0.1, ::1, localhost)"
            )
        if api.trusted_proxies:
            raise ValueError(
                "SPEAKER_API_TRUSTED_PROXIES is set and SPEAKER_AUTH_REQUIRED is false: without API keys no "
                "proxy may stand in front of the registry"
            )


class RateSettings(BaseSettings):
    """Limits for callers of a registry that requires API keys. Environment: SPEAKER_LIMIT_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_LIMIT_", env_ignore_empty=True, frozen=True)

    requests_per_minute: Count | None = Field(60_000, gt=0)
    """Requests that one key may make per minute, unless the key has a limit of its own."""
    uploads_per_minute: Count | None = Field(600, gt=0)
    """Uploads that one key may make per minute, unless the key has a limit of its own."""
    namespace_requests_per_minute: Count | None = Field(None, gt=0)
    """Requests that all keys of a namespace together may make per minute."""
    namespace_uploads_per_minute: Count | None = Field(None, gt=0)
    """Uploads that all keys of a namespace together may make per minute."""
    waiting_requests: Count | None = Field(250, gt=0)
    """Largest number of requests with one key that wait for a change (`wait=`, or as listeners to events)
    at the same time in one API process. With all keys of a namespace together, a quarter of
    SPEAKER_API_MAX_CONNECTIONS may wait.
    """
    arriving_uploads: Count | None = Field(64, gt=0)
    """Largest number of uploads with one key that one API process has begun to read and not answered. With
    all keys of a namespace together, these uploads may be a quarter of SPEAKER_API_MAX_CONNECTIONS, and take
    half of SPEAKER_UPLOAD_HELD_BYTES.
    """
    failures_per_minute: Count = Field(60, gt=0)
    """Requests without a valid key that one address may send before it must wait. Each API process counts for
    itself.
    """
    unknown_names_per_minute: Count | None = Field(1_000, gt=0)
    """Number of names without a voice that one key may ask for per minute. Each of these names causes a read
    of the bucket. Each API process counts for itself.
    """
