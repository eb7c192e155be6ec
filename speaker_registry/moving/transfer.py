"""Sends many voices to a registry, several at once, and reports what became of each.

An interrupted transfer can simply be run again. What the registry already has is not sent a second time,
and an idempotency key that follows from the content makes one version of an upload whose answer was lost. No
state is kept on this side.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

import numpy as np

from speaker_registry.artifact import canonical_json, sha256_digest
from speaker_registry.calls import Registration
from speaker_registry.client import RegistryClient
from speaker_registry.errors import (
    InvalidArtifact,
    PermissionDenied,
    SpeakerRegistryError,
    Unavailable,
    VoiceNotFound,
)
from speaker_registry.exchange import OnPause
from speaker_registry.moving.archive_records import VersionRecord
from speaker_registry.moving.candidates import Candidate, Source, Texts
from speaker_registry.moving.exporting import embedding_of
from speaker_registry.moving.faults import Pauses, concerns_one_voice
from speaker_registry.names import key_of_name, parse_speaker_name
from speaker_registry.schemas import VoiceVersion

State = Literal["registered", "planned", "unchanged", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome for one voice."""

    where: str
    name: str | None = None
    state: State
    versions: tuple[int, ...] = ()
    """Numbers of the versions that were registered, or that the registry had already."""
    error: SpeakerRegistryError | None = None
    """The reason why the voice was refused."""
    notes: tuple[str, ...] = ()
    """Differences from the source that did not prevent the registration."""
    untrained: bool = False
    """True if the registry makes artifacts of the voice with random weights. It is not told of voices from
    an archive, which may come with artifacts of their own.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcomes for all voices."""

    results: tuple[Result, ...]
    stopped: SpeakerRegistryError | None = None
    """The reason why the transfer ended early. The voices without a result were not tried."""

    def count(self, state: State) -> int:
        return sum(result.state == state for result in self.results)


class Task(Protocol):
    """The transfer of one voice."""

    @property
    def where(self) -> str: ...
    @property
    def title(self) -> str: ...
    def run(self, client: RegistryClient, *, dry_run: bool) -> Result: ...


@dataclass(frozen=True, slots=True)
class Registering:
    """Registers a candidate as the next version of its voice, unless it equals the newest version."""

    candidate: Candidate

    @property
    def where(self) -> str:
        return self.candidate.where

    @property
    def title(self) -> str:
        return self.candidate.name.name

    def run(self, client: RegistryClient, *, dry_run: bool) -> Result:
        source = self.candidate.load()
        newest = next(iter(versions_there(client, self.title, limit=1)), None)
        if newest and is_equal(newest, source, self.candidate.texts):
            return self._result("unchanged", newest)
        if dry_run and newest and self._is_known_embedding(client, newest, source):
            return self._result("unchanged", newest)
        if dry_run:
            return Result(where=self.where, name=self.title, state="planned")
        after = newest.version if newest else 0
        registered = register(client, self.title, source, self.candidate.texts, after=after)
        return self._result("registered" if registered.created else "unchanged", registered)

    def _is_known_embedding(self, client: RegistryClient, newest: VoiceVersion, source: Source) -> bool:
        """Return whether the newest version was made from this embedding. It is False if that cannot be read,
        for example because the API key lacks the scope `artifacts:read`, which an import does without.
        """
        try:
            return is_equal_embedding(client, newest, source, self.candidate.texts)
        except (PermissionDenied, InvalidArtifact):
            return False

    def _result(self, state: State, there: Registration | VoiceVersion) -> Result:
        return Result(
            where=self.where,
            name=self.title,
            state=state,
            versions=(there.version,),
            untrained=there.untrained,
        )


def versions_there(client: RegistryClient, name: str, *, limit: int | None = None) -> list[VoiceVersion]:
    """Return the versions of the voice of this name, newest first. A voice that does not exist has none.

    As long as no voice has the name, the registry takes a name in the form of an id for that of another
    voice, whose versions do not count.
    """
    try:
        found = list(client.versions(name, limit=limit))
    except VoiceNotFound:
        return []
    key = parse_speaker_name(name).key
    return [version for version in found if key_of_name(version.voice) == key]


def is_equal(version: VoiceVersion, source: Source, texts: Texts) -> bool:
    """Return whether a version was made from this clip and these texts.

    It is False for an embedding, because no listing shows its values. The registry recognizes an equal one
    when it is sent.
    """
    return (
        isinstance(source, bytes)
        and version.audio is not None
        and ((version.audio.digest, texts_of(version)) == (sha256_digest(source), texts))
    )


def is_equal_embedding(client: RegistryClient, version: VoiceVersion, source: Source, texts: Texts) -> bool:
    """Return whether a version was made from this embedding and these texts. It reads an artifact if only the
    embeddings can differ.

    Raises:
        PermissionDenied: The API key lacks the scope `artifacts:read`.
        InvalidArtifact: The version has no artifact with its embedding.
    """
    if isinstance(source, bytes) or version.source != "embedding" or texts_of(version) != texts:
        return False
    return np.array_equal(embedding_of(client, version), source)


def texts_of(version: VoiceVersion) -> Texts:
    return Texts(consent=version.consent, ref_text=version.ref_text, description=version.description)


def register(
    client: RegistryClient,
    name: str,
    source: Source,
    texts: Texts,
    *,
    after: int,
    dedupe: bool = True,
    voice_id: str | None = None,
    only_new: bool = False,
) -> Registration:
    """Register a version.

    Args:
        after: Number of the newest version that the registry had before. The same content that is registered
            again after other versions is a new version, so this is a part of the idempotency key.
        voice_id: Id of the voice that gets the version. If it is None, the voice of this name gets it.
        only_new: As in `RegistryClient.register`.
    """
    clip, embedding = _clip_or_embedding(source)
    return client.register(
        name,
        clip,
        embedding=embedding,
        consent=texts.consent,
        ref_text=texts.ref_text,
        description=texts.description,
        idempotency_key=f"import-{after}-{_content_hash(name, source, texts)}",
        dedupe=dedupe,
        voice_id=voice_id,
        only_new=only_new,
    )


def restore(
    client: RegistryClient,
    record: VersionRecord,
    source: Source,
    version_id: str | None,
    *,
    voice_id: str | None,
    only_new: bool,
) -> Registration:
    """Register a version under the number and the creation time of an archive's record.

    Args:
        version_id: The id that the version shall have. If it is None, the registry gives it one.
        voice_id, only_new: As for `register`.
    """
    clip, embedding = _clip_or_embedding(source)
    return client.restore_version(
        record.name,
        record.version,
        clip,
        created_at=record.created_at,
        version_id=version_id,
        voice_id=voice_id,
        only_new=only_new,
        embedding=embedding,
        consent=record.consent,
        ref_text=record.ref_text,
        description=record.description,
    )


def _clip_or_embedding(source: Source) -> tuple[bytes | None, np.ndarray | None]:
    return (source, None) if isinstance(source, bytes) else (None, source)


def _content_hash(name: str, source: Source, texts: Texts) -> str:
    data = source if isinstance(source, bytes) else np.ascontiguousarray(source, np.float32).tobytes()
    parts = [name, sha256_digest(data), texts.consent, texts.ref_text, texts.description]
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


@dataclass
class Transfer:
    """Runs tasks on a few threads.

    A request of the registry to come back soon (429 or 503, with `Retry-After`) pauses all threads. A
    registry that cannot be reached, or that refuses the API key, ends the transfer: every further voice would
    fail in the same way.

    Args:
        jobs: Number of voices at a time, and so of clips in memory.
        on_result: Called with each result, by one thread at a time.
        on_pause: Called before a pause of all threads, or with the seconds by which a pause gets longer, by
            one thread at a time.
    """

    client: RegistryClient
    jobs: int = 4
    dry_run: bool = False
    on_result: Callable[[Result], object] = lambda _: None
    on_pause: OnPause = lambda *_: None
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _resume_at: float = field(default=0.0, init=False)
    _stopped: Exception | None = field(default=None, init=False)

    def run(self, tasks: Iterable[Task]) -> Report:
        """Run all tasks. After an interruption, the tasks under way are finished before it is raised."""
        results: dict[int, Result] = {}
        waiting = enumerate(tasks)
        # A thread that is joined when Ctrl-C comes counts as ended in Python 3.11, although it runs on.
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                wait([pool.submit(self._work, waiting, results) for _ in range(self.jobs)])
            finally:
                self._stop.set()
        if self._stopped is not None and not isinstance(self._stopped, SpeakerRegistryError):
            raise self._stopped
        return Report(results=tuple(results[index] for index in sorted(results)), stopped=self._stopped)

    def _work(self, waiting: Iterator[tuple[int, Task]], results: dict[int, Result]) -> None:
        try:
            while (taken := self._next(waiting)) is not None:
                index, task = taken
                result = self._result(task)
                with self._lock:
                    results[index] = result
                    self.on_result(result)
        except Exception as error:  # noqa: BLE001  `run` raises it, on the caller's thread
            self._stopped = self._stopped or error
            self._stop.set()

    def _next(self, waiting: Iterator[tuple[int, Task]]) -> tuple[int, Task] | None:
        with self._lock:
            return None if self._stop.is_set() else next(waiting, None)

    def _result(self, task: Task) -> Result:
        pauses = Pauses(on_pause=self._ask_to_pause, sleep=lambda _: None)  # `_try` pauses
        try:
            return pauses.retry(partial(self._try, task))
        except SpeakerRegistryError as error:
            return self._refused(task, error)

    def _try(self, task: Task) -> Result:
        self._pause()
        return task.run(self.client, dry_run=self.dry_run)

    def _ask_to_pause(self, error: SpeakerRegistryError, seconds: float) -> None:
        with self._lock:
            now = self.clock()
            resume_at = now + seconds
            longer = resume_at - max(self._resume_at, now)
            if longer > 0:
                self._resume_at = resume_at
                self.on_pause(error, longer)

    def _pause(self) -> None:
        while (seconds := self._resume_at - self.clock()) > 0:
            if self._stop.wait(seconds):
                raise Unavailable("the transfer was ended during a pause that the registry asked for")

    def _refused(self, task: Task, error: SpeakerRegistryError) -> Result:
        if not concerns_one_voice(error):
            raise error
        return Result(where=task.where, name=task.title, state="refused", error=error)
