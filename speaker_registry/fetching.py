"""Plans that fetch artifacts (from the cache if allowed, else from the registry) and clips. They do no I/O
themselves.

Everything that is received is verified: the bytes against the digest in the headers, and the manifest against
the request. Neither a broken disk nor a misconfigured proxy can give an engine another voice.
"""

import base64
import binascii
import functools
import html
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from speaker_registry.artifact import Artifact, sha256_digest
from speaker_registry.cache import ArtifactCache, Key
from speaker_registry.calls import MAX_WAIT_SECONDS, long_polled, parsed
from speaker_registry.errors import (
    ArtifactNotReady,
    Conflict,
    DigestMismatch,
    InvalidApiKey,
    InvalidArtifact,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from speaker_registry.exchange import (
    Join,
    Plan,
    Reply,
    Request,
    RetryPolicy,
    Sleep,
    Work,
    exchange,
    no_registry,
    retry_after_seconds,
)
from speaker_registry.flights import Flights
from speaker_registry.names import DEFAULT
from speaker_registry.paths import Target, parse_target
from speaker_registry.reference_audio import ReferenceAudio
from speaker_registry.schemas import ArtifactDescriptor, PendingPicture
from speaker_registry.terminal import printable
from speaker_registry.validation import is_from_zero, shortened

MAX_FILE_BYTES = 64 * 1024**2
PARALLEL_FETCHES = 8
"""Number of artifacts that `prefetch` requests at once."""
_ACCEPT = {"accept": "application/vnd.safetensors, application/json"}
_ETAG = re.compile(r'(?:W/)?"(sha256:[0-9a-f]{64})"')
"""Matches strong and weak tags, because a proxy may weaken a tag. The bytes are verified in either case."""
_CONTENT_DIGEST = re.compile(r"(?:^|[,\s])sha-256=:([A-Za-z0-9+/=]*):")
"""Matches the SHA-256 digest of a `Content-Digest` header (RFC 9530), which may list several algorithms."""


PictureKind = Literal["waveform", "mel"]
_PICTURES: Mapping[PictureKind, str] = {"waveform": "waveform.svg", "mel": "mel.png"}
MAX_PICTURE_BYTES = 1024**2
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 1.0
"""The pause between two requests for a picture that is not drawn yet grows from the first to the longest."""


class File(NamedTuple):
    """An artifact and the bytes of its file. The bytes are not part of the `repr`."""

    data: bytes
    artifact: Artifact

    def __repr__(self) -> str:
        return f"<File {len(self.data)} bytes, {self.artifact!r}>"


class Clip(NamedTuple):
    """A clip as it was uploaded. The `repr` does not contain the bytes, so that no voice gets into logs and
    notebooks.
    """

    data: bytes
    mime_type: str

    def __repr__(self) -> str:
        return f"<Clip {printable(self.mime_type)}, {len(self.data)} bytes>"


class ClipPicture(NamedTuple):
    """A picture of a clip. Notebooks show it. Its `repr` does not contain the bytes."""

    data: bytes
    mime_type: str

    def __repr__(self) -> str:
        return f"<ClipPicture {printable(self.mime_type)}, {len(self.data)} bytes>"

    def _repr_html_(self) -> str:
        """Show the picture in a notebook. No script in it runs, because it is an image."""
        source = f"data:{self.mime_type};base64,{base64.b64encode(self.data).decode()}"
        return f'<img src="{html.escape(source)}" alt="A picture of a clip" style="max-width:100%">'


class Fetching:
    """Fetches artifacts and clips for one client.

    Args:
        scope: Separates the entries of this client from those of other clients that use the same cache.
    """

    def __init__(self, policy: RetryPolicy, cache: ArtifactCache, scope: str) -> None:
        self._policy, self._cache, self._scope = policy, cache, scope
        self._flights = Flights()

    def expire(self, name: str | None) -> None:
        self._cache.expire(self._scope, None if name is None else parse_target(name).speaker.key)

    def fetch(
        self,
        target: Target,
        profile: str,
        wait: float,
        max_age: float | None,
        stale_if_error: float,
        *,
        require_current: bool = False,
    ) -> Plan[Artifact]:
        """Fetch an artifact. Concurrent calls for the same artifact share one request."""
        _check_seconds(wait=wait, max_age=0.0 if max_age is None else max_age, stale_if_error=stale_if_error)
        # An artifact that was confirmed for a call without `require_current` need not be current.
        asked = f"{profile}?current=true" if require_current else profile
        key = Key(self._scope, target.speaker.key, target.reference or DEFAULT, asked)
        called_at = self._cache.now()
        deadline = self._policy.clock() + self._policy.timeout_seconds + wait
        while True:
            if max_age is not None and (artifact := self._cache.fresh(key, max_age)):
                return _with_own_dict(artifact)
            question = (key, wait, max_age, stale_if_error)
            flight, leads = self._flights.join(question, self._cache.now())
            if leads:
                plan = self._fetch(
                    key,
                    target,
                    profile,
                    wait=wait,
                    max_age=max_age,
                    stale_if_error=stale_if_error,
                    require_current=require_current,
                )
                return _with_own_dict((yield from self._flights.lead(question, flight, plan)))
            yield Join(flight.done, max(0.0, deadline - self._policy.clock()))
            if not flight.done.done():
                raise Unavailable("another call for the same artifact did not end in time")
            if flight.answers(called_at):
                return _with_own_dict(flight.result())

    def _fetch(
        self,
        key: Key,
        target: Target,
        profile: str,
        *,
        wait: float,
        max_age: float | None,
        stale_if_error: float,
        require_current: bool,
    ) -> Plan[Artifact]:
        if self._cache.on_disk:
            yield Work(lambda: self._cache.recall(key))
            if max_age is not None and (artifact := self._cache.fresh(key, max_age)):
                return artifact
        known = self._cache.held(key)
        asked_at = self._cache.now()
        try:
            file = yield from self._transfer(target, profile, wait, known, require_current=require_current)
        except Unavailable:
            self._cache.count_error()
            if stale_if_error > 0 and (artifact := self._cache.stale(key, stale_if_error)):
                return artifact
            raise
        except (NotFound, Conflict, PermissionDenied, InvalidApiKey) as error:
            if not error.retryable:
                yield from _on_disk(self._cache, functools.partial(self._cache.forget, key))
            raise
        if file is None:
            assert known is not None, "the registry answers 304 only if a digest was sent"
            yield from _on_disk(self._cache, functools.partial(self._cache.confirm, key, known, asked_at))
            return known
        yield from _on_disk(
            self._cache, functools.partial(self._cache.add, key, file.artifact, asked_at, data=file.data)
        )
        return file.artifact

    def file(self, target: Target, profile: str, wait: float) -> Plan[File]:
        """Fetch an artifact and its file from the registry, without using the cache."""
        _check_seconds(wait=wait)
        file = yield from self._transfer(target, profile, wait, None)
        assert file is not None, "the registry answers 304 only if a digest was sent"
        return file

    def clip(self, target: Target) -> Plan[Clip]:
        """Fetch a clip. Clips are never cached, because the permission to read them can be withdrawn."""
        path = f"{target.version_path}/audio"
        reply = yield from exchange(self._policy, Request(path=path, max_bytes=MAX_FILE_BYTES))
        _check_clip(reply, target, "clip")
        return Clip(reply.body, reply.headers.get("content-type", "application/octet-stream"))

    def samples(self, target: Target) -> Plan[ReferenceAudio]:
        """Fetch the decoded samples of a clip. Samples are never cached."""
        path = f"{target.version_path}/audio/samples"
        reply = yield from exchange(self._policy, Request(path=path, max_bytes=MAX_FILE_BYTES))
        _check_clip(reply, target, "decoded clip")
        return ReferenceAudio.from_bytes(reply.body)

    def picture(self, target: Target, kind: PictureKind, wait: float) -> Plan[ClipPicture]:
        """Fetch a picture of a clip. Pictures are never cached."""
        _check_seconds(wait=wait)
        if kind not in _PICTURES:
            raise InvalidRequest(f"kind is {shortened(kind)}; accepted: waveform, mel", param="kind")
        request = Request(path=f"{target.version_path}/{_PICTURES[kind]}", max_bytes=MAX_PICTURE_BYTES)
        deadline = self._policy.clock() + wait
        pause = _FIRST_PAUSE_SECONDS
        while True:
            reply = yield from exchange(self._policy, request)
            if reply.status == 200:
                _check_clip(reply, target, "picture")
                return ClipPicture(reply.body, reply.headers.get("content-type", "application/octet-stream"))
            left = deadline - self._policy.clock()
            if left <= 0:
                raise _not_drawn(reply)
            yield Sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _transfer(
        self,
        target: Target,
        profile: str,
        wait: float,
        known: Artifact | None,
        *,
        require_current: bool = False,
    ) -> Plan[File | None]:
        """Request the file of an artifact. Returns None if the registry answers that `known` is still
        current.
        """
        request = Request(
            path=f"{target.artifact_path(profile)}/file",
            params={"current": "true"} if require_current else {},
            headers=_ACCEPT | ({"if-none-match": f'"{known.digest}"'} if known else {}),
            max_bytes=MAX_FILE_BYTES,
        )
        deadline = self._policy.clock() + wait
        while True:
            left = deadline - self._policy.clock()
            reply = yield from exchange(self._policy, long_polled(request, min(left, MAX_WAIT_SECONDS)))
            if reply.status == 304 and known:
                return None
            if reply.status == 200:
                return verified(reply, target, profile)
            not_ready = _not_ready(reply)
            left = deadline - self._policy.clock()
            if left <= 0:
                raise not_ready
            yield Sleep(min(not_ready.retry_after_seconds or 1.0, left))


def forget_voice(cache: ArtifactCache, scope: str, voice: str) -> Plan[None]:
    """Drop all cached artifacts of a voice, by its name or its id."""
    key = parse_target(voice).speaker.key
    yield from _on_disk(cache, functools.partial(cache.forget_speaker, scope, key))


def _on_disk(cache: ArtifactCache, function: Callable[[], None]) -> Plan[None]:
    """Call a function that changes the cache. It blocks for a while only if the cache has a directory."""
    if cache.on_disk:
        yield Work(function)
    else:
        function()


def _check_seconds(**times: float) -> None:
    """Raise `InvalidRequest` unless all are numbers from 0 on. A mistake in `stale_if_error` would otherwise
    show only when the registry cannot be reached.
    """
    for name, seconds in times.items():
        if not is_from_zero(seconds):
            raise InvalidRequest(f"{name} is {shortened(seconds)}; accepted: seconds from 0", param=name)


def pairs_of(voices: Iterable[str], profiles: Iterable[str]) -> list[tuple[str, str]]:
    """Return each pair of voice and profile once. Raises `InvalidRequest` for a text in place of a list."""
    for given, what in ((voices, "voices"), (profiles, "profiles")):
        if isinstance(given, str):
            raise InvalidRequest(f"{what} is the text {given[:80]!a}; accepted: a list of texts", param=what)
    wanted = list(profiles)
    return list(dict.fromkeys((voice, profile) for voice in voices for profile in wanted))


def verified(reply: Reply, target: Target, profile: str) -> File:
    """Parse and verify the artifact of an answer.

    Raises:
        DigestMismatch: The bytes do not match the digest in the answer's headers.
        Unavailable: The headers have no digest, so a proxy or another server has answered.
        InvalidArtifact: The file is not an artifact, or not the one that was requested.
    """
    check_digest(reply, "artifact")
    artifact = Artifact.parse(reply.body)
    check_identity(artifact, target, profile, reply.headers)
    for tensor in artifact.tensors.values():
        tensor.flags.writeable = False
    return File(reply.body, artifact)


def _check_clip(reply: Reply, target: Target, what: str) -> None:
    """Verify the body of an answer against its headers, and these against the version that was requested."""
    check_digest(reply, what)
    version = reply.headers.get("x-voice-version")
    if version and isinstance(target.reference, int) and version != str(target.reference):
        raise Unavailable(
            f"asked for the {what} of {target}, but the answer is about version {version[:20]!a}"
        )


def check_digest(reply: Reply, what: str) -> None:
    """Verify the body of an answer against the digests in its headers. Raises as `verified`."""
    digest = sha256_digest(reply.body)
    declared = declared_digests(reply.headers)
    if not declared:
        content_type = reply.headers.get("content-type", "")
        raise no_registry(f"the answer is {content_type[:80]!a} without a digest")
    if declared != {digest}:
        said = " and ".join(sorted(declared))
        raise DigestMismatch(f"the {what}'s bytes are {digest}, but the answer's headers say {said}")


def declared_digests(headers: Mapping[str, str]) -> set[str]:
    """Return the digests of `ETag` and `Content-Digest` as `sha256:…`. A `Content-Digest` that cannot be
    decoded yields a text that matches no body.
    """
    etags = _ETAG.fullmatch(headers.get("etag", ""))
    content = _CONTENT_DIGEST.search(headers.get("content-digest", ""))
    digests = {etags[1]} if etags else set()
    if content:
        try:
            digests.add("sha256:" + base64.b64decode(content[1], validate=True).hex())
        except binascii.Error:
            digests.add("an unreadable Content-Digest")
    return digests


def check_identity(artifact: Artifact, target: Target, profile: str, headers: Mapping[str, str]) -> None:
    """Verify that an artifact is the one that was requested. Raises `InvalidArtifact` if not."""
    manifest = artifact.manifest
    if not target.can_mean(manifest.voice, manifest.version):
        raise InvalidArtifact(
            f"asked for {target} for {profile}, but the artifact is of "
            f"{manifest.voice[:80]!a}@{manifest.version}"
        )
    checks = [("profile", manifest.profile, profile)]
    if version := headers.get("x-voice-version"):
        checks.append(("version", str(manifest.version), version))
    if fingerprint := headers.get("x-artifact-fingerprint"):
        checks.append(("fingerprint", manifest.fingerprint, fingerprint))
    for field, found, expected in checks:
        if found != expected:
            raise InvalidArtifact(
                f"asked for {target} for {profile}: the artifact's {field} is {found!a}, not {expected!a}"
            )


def _not_ready(reply: Reply) -> ArtifactNotReady:
    if reply.status != 202:
        raise Unavailable(f"the registry answered with status {reply.status} where an artifact was asked for")
    descriptor = parsed(ArtifactDescriptor, reply)
    reason = f" ({descriptor.reason})" if descriptor.reason else ""
    return ArtifactNotReady(
        f"{descriptor.voice}@{descriptor.version} for {descriptor.profile} is {descriptor.state}{reason}",
        retry_after_seconds=retry_after_seconds(reply.headers),
    )


def _not_drawn(reply: Reply) -> ArtifactNotReady:
    if reply.status != 202:
        raise Unavailable(f"the registry answered with status {reply.status} where a picture was asked for")
    pending = parsed(PendingPicture, reply)
    return ArtifactNotReady(
        f"{pending.picture} of {pending.voice}@{pending.version} is not drawn yet. {pending.reason}",
        retry_after_seconds=retry_after_seconds(reply.headers),
    )


def _with_own_dict(artifact: Artifact) -> Artifact:
    """Copy the dict of tensors. Engines replace tensors in it, which must not change the cached artifact."""
    # dataclasses.replace would take a quarter of the time of a hit in memory.
    return Artifact(dict(artifact.tensors), artifact.manifest, artifact.digest, artifact.size)
