"""Plans for the registry's routes: the request that each call makes, and how its answer is parsed.

This module does no I/O. Checks of arguments are in `arguments`, paths in `paths`, pages in `listings`,
retries in `exchange`, artifacts in `fetching`, waiting in `waiting`, and the execution of plans in `client`
and `async_client`.
"""

import dataclasses
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from speaker_registry.arguments import (
    Upload,
    checked_idempotency_key,
    condition,
    only_if_new,
    request_body,
)
from speaker_registry.artifact import canonical_json
from speaker_registry.errors import InvalidRequest, Unavailable, VersionNotFound
from speaker_registry.exchange import (
    Plan,
    Reply,
    Request,
    RetryPolicy,
    SendRequest,
    error_of,
    exchange,
    no_registry,
    with_json,
)
from speaker_registry.labels import changed_labels
from speaker_registry.listings import Item, Listing, listing_of
from speaker_registry.names import DEFAULT, parse_speaker_name
from speaker_registry.paths import (
    Target,
    alias_path,
    aliases_path,
    campaign_path,
    campaigns_path,
    key_id_of,
    parse_target,
    segment,
    voice_path,
)
from speaker_registry.schemas import (
    MAX_PROFILES,
    MAX_RESOLVED,
    AliasMove,
    ApiKey,
    ApiKeyRequest,
    ArtifactDescriptor,
    Campaign,
    CampaignRequest,
    EncoderPromotion,
    ExtractionRequest,
    Health,
    Job,
    JobSummary,
    MovedAlias,
    NewApiKey,
    Page,
    Profile,
    ProfileChange,
    Quota,
    RegisteredVersion,
    Resolution,
    ResolvedArtifact,
    Schema,
    Untrained,
    Voice,
    VoiceAlias,
    VoiceChange,
    VoiceEdit,
    VoiceVersion,
)

MAX_WAIT_SECONDS = 60.0
"""Longest time that the registry holds an answer back."""
Model = TypeVar("Model", bound=BaseModel)
Described = TypeVar("Described", Voice, VoiceVersion, ArtifactDescriptor)


class Registration(Schema):
    """The result of an upload."""

    id: str
    name: str
    version: int
    version_id: str
    """Id of the version. `id` is that of the voice."""
    created_at: int
    created: bool
    """False if no version was added, because the upload was repeated or equals the newest version. The result
    then describes the existing version.
    """
    jobs: dict[str, str]
    """Maps each profile to the id of the job that extracts it."""
    reason: str | None = None
    """Tells why an extraction does not start: no worker serves a profile at the moment."""
    held_back: str | None = None
    """Tells why the alias `default` will not move to this version, although it is the newest."""
    untrained: Untrained = False
    """True if one of the artifacts was made with random weights, or will be."""

    @property
    def reference(self) -> str:
        """Reference to exactly this version, such as `alice@3`. It stays valid when the name moves on."""
        return f"{self.name}@{self.version}"


class Alias(MovedAlias):
    """An alias of a voice, with its ETag. A later change that sends the ETag is refused if the alias has
    changed.
    """

    etag: str | None = None
    """Value for `if_match`."""


def target_of(speaker: str | Registration) -> Target:
    """Return the target of a call: the version of a registration, or the one that a text such as `alice@3`
    names.
    """
    return parse_target(speaker.reference if isinstance(speaker, Registration) else speaker)


class Calls:
    """The calls of one client. Invalid arguments raise at once, not when the plan is executed."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy

    def voice(self, name: str) -> Plan[Voice]:
        target = Target(parse_speaker_name(name), None)
        return self._about(target, Voice, Request(path=target.voice_path))

    def version(self, target: Target) -> Plan[VoiceVersion]:
        return self._about(target, VoiceVersion, Request(path=target.version_path))

    def history(self, voice: str, limit: int | None) -> Listing[VoiceChange]:
        return listing_of(f"{voice_path(voice)}/history", Page[VoiceChange], limit)

    def aliases(self, voice: str, limit: int | None) -> Listing[VoiceAlias]:
        return listing_of(aliases_path(voice), Page[VoiceAlias], limit)

    def alias(self, voice: str, alias: str) -> Plan[Alias]:
        return self._alias(Request(path=alias_path(voice, alias)))

    def move_alias(self, voice: str, alias: str, version: int, if_match: str | None) -> Plan[Alias]:
        wanted = request_body(AliasMove, version=version).model_dump_json()
        path = alias_path(voice, alias)
        return self._alias(with_json(path, wanted, method="PUT", headers=condition(if_match)))

    def remove_alias(self, voice: str, alias: str, if_match: str | None) -> Plan[None]:
        headers = condition(if_match)
        return self._done(Request(method="DELETE", path=alias_path(voice, alias), headers=headers))

    def rollback(self, voice: str, to: int | None) -> Plan[Alias]:
        present = yield from self.alias(voice, DEFAULT)
        if to is None:
            to = yield from self._version_before(voice, present.version)
        moved = yield from self.move_alias(voice, DEFAULT, to, present.etag)
        return moved.model_copy(update={"previous_version": present.version})

    def _version_before(self, voice: str, number: int) -> Plan[int]:
        older = listing_of(f"{voice_path(voice)}/versions", Page[VoiceVersion], 1, after=str(number))
        page = yield from self.page(older)
        if not page.data:
            raise VersionNotFound(
                f"`default` points to version {number} of voice '{voice}', and there is no older version",
                param="to",
            )
        return page.data[0].version

    def _alias(self, request: Request) -> Plan[Alias]:
        reply = yield from exchange(self._policy, request)
        return parsed(Alias, reply).model_copy(update={"etag": reply.headers.get("etag")})

    def descriptor(self, target: Target, profile: str, wait: float = 0.0) -> Plan[ArtifactDescriptor]:
        request = long_polled(Request(path=target.artifact_path(profile)), wait)
        return self._about(target, ArtifactDescriptor, request)

    def put(
        self, target: Target, profile: str, content: bytes, fingerprint: str | None
    ) -> Plan[ArtifactDescriptor]:
        headers = {"content-type": "application/vnd.safetensors"}
        if fingerprint is not None:
            headers["x-artifact-fingerprint"] = fingerprint
        path = target.artifact_path(profile)
        request = Request(method="PUT", path=path, headers=headers, content=content)
        return self._read(ArtifactDescriptor, request)

    def extract(self, target: Target, profile: str, *, force: bool) -> Plan[ArtifactDescriptor]:
        wanted = ExtractionRequest(profiles=[segment(profile, "profile")], force=force)
        path = f"{target.version_path}/extractions"
        # Each forced attempt would make the artifact once more.
        request = with_json(path, wanted.model_dump_json(), repeatable=not force)
        page = yield from self._read(Page[ArtifactDescriptor], request)
        if len(page.data) != 1:
            raise Unavailable(f"the registry answered with {len(page.data)} artifacts, but one was asked for")
        return page.data[0]

    def resolve(self, voices: Sequence[str], profiles: Sequence[str]) -> Plan[list[ResolvedArtifact]]:
        if not 1 <= len(profiles) <= MAX_PROFILES:
            raise InvalidRequest(
                f"{len(profiles)} profiles were given; accepted: 1 to {MAX_PROFILES}", param="profiles"
            )
        found: list[ResolvedArtifact] = []
        at_once = MAX_RESOLVED // len(profiles)
        for start in range(0, len(voices), at_once):
            found += yield from self._resolve(voices[start : start + at_once], profiles)
        return found

    def _resolve(self, voices: Sequence[str], profiles: Sequence[str]) -> Plan[list[ResolvedArtifact]]:
        wanted = {"voices": list(voices), "profiles": [segment(one, "profile") for one in profiles]}
        request = with_json("/v1/resolve", canonical_json(wanted))
        page = yield from self._read(Resolution, request)
        if len(page.data) != len(voices) * len(profiles):
            raise Unavailable(
                f"the registry answered with {len(page.data)} entries, but {len(voices) * len(profiles)} "
                "were asked for"
            )
        return page.data

    def cancel(self, job_id: str) -> Plan[Job]:
        return self._read(Job, Request(method="POST", path=f"/v1/jobs/{segment(job_id, 'id')}/cancel"))

    def job(self, job_id: str, wait: float = 0.0) -> Plan[Job]:
        return self._read(Job, long_polled(Request(path=f"/v1/jobs/{segment(job_id, 'id')}"), wait))

    def voices(
        self,
        profile: str | None,
        state: str | None,
        q: str | None,
        labels: Mapping[str, str] | None,
        limit: int | None,
    ) -> Listing[Voice]:
        label = ",".join(f"{key}={value}" for key, value in (labels or {}).items()) or None
        return listing_of("/v1/voices", Page[Voice], limit, profile=profile, state=state, q=q, label=label)

    def edit_voice(self, name: str, members: Mapping[str, object], if_match: str | None) -> Plan[Voice]:
        wanted = request_body(VoiceEdit, **members)
        changed_labels({}, wanted.labels)
        content, headers = wanted.model_dump_json(exclude_unset=True), condition(if_match)
        return self._read(Voice, with_json(voice_path(name), content, method="PATCH", headers=headers))

    def versions(self, name: str, limit: int | None) -> Listing[VoiceVersion]:
        return listing_of(f"{voice_path(name)}/versions", Page[VoiceVersion], limit)

    def jobs(
        self,
        state: str | None,
        voice: str | None,
        profile: str | None,
        created_after: float | None,
        limit: int | None,
    ) -> Listing[Job]:
        since = None if created_after is None else repr(created_after)
        return listing_of(
            "/v1/jobs", Page[Job], limit, state=state, voice=voice, profile=profile, created_after=since
        )

    def jobs_summary(self) -> Plan[JobSummary]:
        return self._read(JobSummary, Request(path="/v1/jobs/summary"))

    def profiles(self) -> Listing[Profile]:
        return listing_of("/v1/profiles", Page[Profile], None)

    def promote_encoder(self, profile: str, wanted: EncoderPromotion) -> Plan[Profile]:
        path = f"/v1/profiles/{segment(profile, 'profile')}/promote"
        # A repetition would be refused because the encoder is current already.
        return self._read(Profile, with_json(path, wanted.model_dump_json(), repeatable=False))

    def profile_history(self, profile: str, limit: int | None) -> Listing[ProfileChange]:
        return listing_of(f"/v1/profiles/{segment(profile, 'profile')}/history", Page[ProfileChange], limit)

    def start_campaign(self, profile: str, wanted: CampaignRequest) -> Plan[Campaign]:
        # A repetition would be refused because the campaign has begun already.
        request = with_json(campaigns_path(profile), wanted.model_dump_json(), repeatable=False)
        return self._read(Campaign, request)

    def campaigns(self, profile: str, limit: int | None) -> Listing[Campaign]:
        return listing_of(campaigns_path(profile), Page[Campaign], limit)

    def campaign(self, profile: str, campaign_id: str) -> Plan[Campaign]:
        return self._read(Campaign, Request(path=campaign_path(profile, campaign_id)))

    def change_campaign(self, profile: str, campaign_id: str, change: str) -> Plan[Campaign]:
        path = f"{campaign_path(profile, campaign_id)}/{change}"
        return self._read(Campaign, Request(method="POST", path=path))

    def page(self, listing: Listing[Item]) -> Plan[Page[Item]]:
        page = yield from self._read(listing.page, listing.request)
        return page if listing.limit is None else page.model_copy(update={"data": page.data[: listing.limit]})

    def register(
        self,
        name: str,
        upload: Upload,
        *,
        idempotency_key: str | None,
        dedupe: bool,
        voice_id: str | None,
        only_new: bool,
    ) -> Plan[Registration]:
        fields = upload.fields(name=parse_speaker_name(name).name, voice_id=voice_id)
        # The key is made once per call, so that a retry after a lost answer does not make a second version.
        key = uuid.uuid4().hex if idempotency_key is None else checked_idempotency_key(idempotency_key)
        headers = {"idempotency-key": key, **only_if_new(only_new)}
        params = {"if_exists": "add_version", **({} if dedupe else {"dedupe": "false"})}
        path, clip = "/v1/voices", upload.clip
        return self._registered(
            Request(method="POST", path=path, params=params, headers=headers, fields=fields, clip=clip)
        )

    def restore_version(
        self,
        name: str,
        number: int,
        upload: Upload,
        *,
        created_at: int,
        version_id: str | None,
        voice_id: str | None,
        only_new: bool,
    ) -> Plan[Registration]:
        fields = upload.fields(created_at=str(created_at), id=version_id, voice_id=voice_id)
        path = parse_target(parse_speaker_name(name).name, number).version_path
        headers = only_if_new(only_new)
        return self._registered(
            Request(method="PUT", path=path, headers=headers, fields=fields, clip=upload.clip)
        )

    def _registered(self, request: Request) -> Plan[Registration]:
        answer = yield from self._read(RegisteredVersion, request)
        return Registration(
            id=answer.voice_id,
            name=answer.voice,
            version=answer.version,
            version_id=answer.id,
            created_at=answer.created_at,
            created=answer.created,
            jobs=answer.jobs,
            reason=next((one.reason for one in answer.artifacts if one.reason), None),
            held_back=answer.held_back,
            untrained=answer.untrained,
        )

    def create_key(self, wanted: ApiKeyRequest) -> Plan[NewApiKey]:
        content = wanted.model_dump_json(exclude_none=True)
        # Each attempt would make one more key.
        return self._read(NewApiKey, with_json("/v1/keys", content, repeatable=False))

    def rotate_key(self, key_id: str, grace_seconds: int) -> Plan[NewApiKey]:
        path, params = f"/v1/keys/{key_id_of(key_id)}/rotate", {"grace_seconds": str(grace_seconds)}
        return self._read(NewApiKey, Request(method="POST", path=path, params=params, repeatable=False))

    def revoke_key(self, key_id: str, *, children: bool) -> Plan[None]:
        params = {"children": "true"} if children else {}
        return self._done(Request(method="DELETE", path=f"/v1/keys/{key_id_of(key_id)}", params=params))

    def keys(self, limit: int | None) -> Listing[ApiKey]:
        return listing_of("/v1/keys", Page[ApiKey], limit)

    def health(self) -> Plan[Health]:
        """Ask for the registry's health once. An answer that it cannot serve requests is a result, not an
        error.
        """
        deadline = self._policy.clock() + self._policy.timeout_seconds
        request = Request(path="/readyz")
        outcome = yield SendRequest(request, deadline)
        if isinstance(outcome, Reply) and outcome.status in {200, 503}:
            return parsed(Health, outcome)
        assert outcome is not None, "a SendRequest has an outcome"
        raise error_of(outcome, request) or no_registry("the answer is not about the registry's health")

    def quota(self) -> Plan[Quota]:
        return self._read(Quota, Request(path="/v1/quota"))

    def delete_version(self, voice: str, version: int, if_match: str | None) -> Plan[None]:
        path = parse_target(voice, version).version_path
        return self._done(Request(method="DELETE", path=path, headers=condition(if_match)))

    def undelete(self, name: str) -> Plan[Voice]:
        path = f"{voice_path(name)}/undelete"
        # A repetition would be refused because the voice exists already.
        return self._read(Voice, Request(method="POST", path=path, repeatable=False))

    def delete(self, name: str) -> Plan[None]:
        return self._done(Request(method="DELETE", path=voice_path(name)))

    def _done(self, request: Request) -> Plan[None]:
        """Send a request whose answer has no content. A page of a proxy does not count as an answer."""
        reply = yield from exchange(self._policy, request)
        if reply.status not in {204, 404}:  # see `exchange` about the latter
            raise no_registry(f"the answer has status {reply.status} in place of 204")

    def _about(self, target: Target, model: type[Described], request: Request) -> Plan[Described]:
        """Read something about a target. An answer about another voice or version is refused."""
        found = yield from self._read(model, request)
        voice = found.name if isinstance(found, Voice) else found.voice
        if not target.can_mean(voice, found.version):
            raise Unavailable(f"asked for {target}, but the answer is about {voice[:80]!a}@{found.version}")
        return found

    def _read(self, model: type[Model], request: Request) -> Plan[Model]:
        reply = yield from exchange(self._policy, request)
        return parsed(model, reply)


def long_polled(request: Request, wait: float) -> Request:
    """Turn a request into a long poll: the registry answers on a change, at the latest after `wait`
    seconds.
    """
    if wait <= 0:
        return request
    # The wait is rounded up, because an answer just before its end would cost another request.
    seconds = math.ceil(min(wait, MAX_WAIT_SECONDS))
    return dataclasses.replace(request, params={**request.params, "wait": str(seconds)}, wait_seconds=seconds)


def parsed(model: type[Model], reply: Reply) -> Model:
    """Parse the body of an answer. Raises `Unavailable` if it comes from a proxy or another server."""
    try:
        return model.model_validate_json(reply.body)
    except ValidationError as error:
        name = model.__name__.lstrip("_")
        raise no_registry(f"the answer cannot be read as {name}") from error
