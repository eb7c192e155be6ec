"""Keeps the uploaded voices of one TTS server equal to the registry.

A server replaces a voice in place, and vLLM-Omni loses the former one if the new clip is refused. So each
version is uploaded as a voice of its own that never changes, such as `wren@3`, and no name that the server
offers is uploaded again. Only if two pushers send a version at the same time, the second upload replaces the
first. If a registry that was restored from a backup gives the number to another version, the voice is deleted
before that version is uploaded. A voice that was pushed is recognised by its mark (see `names.Mark`), also by
a later process.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from speaker_registry.client import RegistryClient
from speaker_registry.errors import SpeakerRegistryError, Unavailable
from speaker_registry.exchange import OnPause
from speaker_registry.manifests import ManifestEntry
from speaker_registry.moving.faults import concerns_one_voice
from speaker_registry.pushing import DEFAULT_SLOTS
from speaker_registry.pushing.asked_registry import AskedRegistry
from speaker_registry.pushing.names import digest, fault_of, pushed_name
from speaker_registry.pushing.pushed import Pushed, Sightings
from speaker_registry.pushing.speech_server import ServerVoices, SpeechServer, UploadRefused
from speaker_registry.syncing.synchronization import Outcome, Report

GRACE_SECONDS = 600.0
"""A replaced version stays in the server for this long, for requests and clients that still name it."""
REFUSED_SECONDS = 600.0
"""A voice that the server has refused is not sent again for this long."""
MAX_FAULTS = 10
"""A run ends after this many uploads and deletions without an answer. Each may take some minutes, and no
deleted voice leaves the server meanwhile.
"""
LOOK_SECONDS = 30.0
"""The registry is asked again this often while voices are uploaded, and deleted ones leave."""
LIST_SECONDS = 2.0
"""A list of the server's voices that is older than this is renewed before an upload."""
_MAX_LISTS = 3
"""After so many voices that the server refused and did not have either, it is not asked for more of them."""
_Result = TypeVar("_Result")


@dataclass(slots=True)
class _State:
    """Holds what the server offers, as far as it is known during one run."""

    names: set[str] = field(default_factory=set)
    """All names that the server offers, including those of others."""
    ours: dict[str, Pushed] = field(default_factory=dict)
    """The voices that were pushed from here, by their names."""
    now: float = 0.0
    """The time of the last list, by the clock of the server."""
    looked_at: float = 0.0
    """The time of the last look at the registry, in seconds of the monotonic clock."""
    gone: set[str] = field(default_factory=set)
    """The names of deleted voices that the server was asked to delete, once in a run."""
    removed: int = 0
    faults: list[SpeakerRegistryError] = field(default_factory=list)
    """Errors of uploads and deletions that may concern more than one voice."""
    absent: int = 0
    """The number of voices that the server has refused, and does not have."""
    without_history: dict[str, Unavailable] = field(default_factory=dict)
    """Maps the ids of the voices for whose history the registry had no answer to the errors. These do not end
    the run, because a replaced version may stay.
    """

    @property
    def errors(self) -> list[SpeakerRegistryError]:
        """All errors because of which something was left to the next run."""
        return [*self.without_history.values(), *self.faults]


class Pusher:
    """Pushes the default versions of all voices of a profile to one server.

    Args:
        kind: One of `SERVERS`.
        slots: Maximum number of voices that the server is given. Others are left out, and reported.
        on_pause: Called before each pause that the registry asks for.
        clock: Replaces `time.monotonic`, for tests.
    """

    def __init__(
        self,
        client: RegistryClient,
        server: SpeechServer,
        *,
        profile: str,
        kind: str = "vllm-omni",
        slots: int = DEFAULT_SLOTS,
        on_pause: OnPause = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = AskedRegistry(client, profile, on_pause)
        self._server, self._kind, self._slots = server, kind, slots
        self._clock, self._sightings = clock, Sightings()
        # All times below are of this clock, because those of the server and of the bucket may be set.
        self._replaced: dict[str, float | None] = {}
        """Names of replaced versions, and when they were replaced. None if this process found them replaced
        when it began, and has not asked the registry yet when that was.
        """
        self._has_looked = False
        self._failed: dict[str, float] = {}
        """Ids of the voices whose last upload failed because the registry or the server had no answer, and
        when that was.
        """
        self._refused: dict[tuple[str, str], tuple[str, float]] = {}
        """Names, with the ids of the versions, that the server has refused: the reason, and until when they
        are not sent again.
        """

    def run(self) -> Report:
        """Make the server offer what the registry holds now.

        A deleted voice is deleted first. Between uploads, the registry is asked again every `LOOK_SECONDS`,
        and what it has deleted leaves the server. A voice that the server or the registry refuses is
        reported, and so is one about which either has no answer, as long as both still answer other
        questions.

        Raises:
            InvalidRequest: The server has voices that were pushed from another registry at the same address.
                They stay as they are.
            SpeakerRegistryError: The registry or the server cannot be reached, refuses everything, or has had
                no answer to `MAX_FAULTS` uploads and deletions. Besides deleted voices, the server still
                offers everything that it had.
        """
        self._registry.look()
        state = _State()
        self._look(state)
        for name in list(self._replaced):
            self._checked(partial(self._delete_replaced, name, state), state)
        outcomes = tuple(sorted(self._sync(state), key=lambda one: one.name))
        self._failed = {one: at for one, at in self._failed.items() if one in self._registry.voices}
        self._refused = {key: one for key, one in self._refused.items() if self._clock() < one[1]}
        fault = state.errors[-1] if state.errors else None
        return Report(outcomes=outcomes, removed=state.removed, fault=fault)

    def _look(self, state: _State) -> None:
        """Ask the server and the registry what they have, and delete the voices that the registry has not."""
        found = self._server.voices()
        # The registry is asked after the server was, so that it knows every voice that another pusher has
        # uploaded in between. Otherwise such a voice would be deleted as unknown.
        self._registry.look()
        state.looked_at = self._clock()
        self._see(found, state)
        gone = state.ours.keys() - self._known(state).keys() - state.gone
        state.gone |= gone
        for name in sorted(gone):
            self._checked(partial(self._delete, name, state), state)
        self._notice_replaced(state)

    def _see(self, found: ServerVoices, state: _State) -> None:
        """Take in what the server offers."""
        state.ours = self._sightings.pushed(found, self._registry, self._server.url, self._clock())
        state.names, state.now = set(found.names), found.now

    def _held(self, entry: ManifestEntry, state: _State) -> Pushed | None:
        """Return the voice that was made from exactly this version, or None if the server has none."""
        one = state.ours.get(pushed_name(entry, self._kind))
        return one if one is not None and one.version == digest(entry.version_id) else None

    def _notice_replaced(self, state: _State) -> None:
        current = {key: pushed_name(entry, self._kind) for key, entry in self._registry.voices.items()}
        replaced = [name for name, one in self._known(state).items() if name != current[one.voice_id]]
        noticed = self._clock() if self._has_looked else None
        self._replaced = {name: self._replaced.get(name, noticed) for name in replaced}
        self._has_looked = True

    def _known(self, state: _State) -> dict[str, Pushed]:
        """Return the voices in the server that the registry has, too. Others are there if the server had no
        answer to their deletion.
        """
        return {name: one for name, one in state.ours.items() if one.voice_id in self._registry.voices}

    def _delete_replaced(self, name: str, state: _State) -> None:
        if name in self._known(state) and self._may_leave(name, state):
            self._delete(name, state)

    def _may_leave(self, name: str, state: _State) -> bool:
        """Return whether a replaced version may be deleted, because the server has had the version that
        replaced it for the grace period.

        The time of its upload shows this even if no process was watching. After a rollback, the current
        version was uploaded first, and the time counts from the rollback. A version that was rolled back and
        then deleted has no grace period.
        """
        one = state.ours[name]
        successor = self._held(self._registry.voices[one.voice_id], state)
        if successor is None:
            return False
        if successor.created_at > one.created_at:
            return successor.since + GRACE_SECONDS <= self._clock()
        return self._is_grace_over(name, state) or self._is_deleted(one)

    def _is_grace_over(self, name: str, state: _State) -> bool:
        """Return whether a version was replaced at least as long ago as the grace period."""
        since = self._replaced[name]
        if since is None:
            since = self._replaced[name] = self._replaced_at(state.ours[name].voice_id, state)
        return since is not None and since + GRACE_SECONDS <= self._clock()

    def _replaced_at(self, voice_id: str, state: _State) -> float | None:
        """Return when a version was replaced that this process has not seen as the current one of its voice.
        That was no later than the last change of the voice, which the clock of the registry's bucket dates.
        None if the registry has no answer, which is waited for only once in a run, and for `MAX_FAULTS`
        voices.
        """
        if voice_id in state.without_history or len(state.without_history) >= MAX_FAULTS:
            return None
        try:
            changed_at = self._registry.last_change(voice_id)
        except SpeakerRegistryError as error:
            if concerns_one_voice(error):
                return self._clock()
            if not isinstance(error, Unavailable):
                raise
            state.without_history[voice_id] = error
            return None
        return self._clock() - (0.0 if changed_at is None else max(0.0, state.now - changed_at))

    def _checked(self, call: Callable[[], _Result], state: _State) -> _Result:
        """Return what a call about one voice returns.

        After a call without an answer, the server is asked what it offers, because it may have done what it
        was asked for.

        Raises:
            SpeakerRegistryError: The call met an error that concerns all voices: a refusal, the
                `MAX_FAULTS`-th upload or deletion without an answer, or a registry or server that answers
                nothing at all any more.
        """
        before = len(state.errors)
        result = call()
        if len(state.errors) == before:
            return result
        if len(state.faults) >= MAX_FAULTS or any(not isinstance(one, Unavailable) for one in state.faults):
            raise state.faults[-1]
        self._registry.check_answers()
        self._see(self._server.voices(), state)
        return result

    def _sync(self, state: _State) -> Iterator[Outcome]:
        """Upload what the server has not. A voice that is deleted meanwhile must not stay until the end."""
        for one in _by_priority(self._registry.voices, state, self._failed):
            if self._clock() >= state.looked_at + LOOK_SECONDS:
                self._look(state)
            if entry := self._registry.voices.get(one.voice_id):
                yield self._checked(partial(self._sync_voice, entry, state), state)

    def _sync_voice(self, entry: ManifestEntry, state: _State) -> Outcome:
        """Upload a version unless the server has it, and return the outcome."""
        name = pushed_name(entry, self._kind)
        if not self._held(entry, state):
            self._renew_list(state)
        if self._held(entry, state):
            return Outcome(name=entry.voice, version=entry.version, state="unchanged")
        fault = self._fault_of(name, entry, state) or self._upload(name, entry, state)
        if fault is None:
            number, version = str(entry.version), digest(entry.version_id)
            state.ours[name] = Pushed(entry.voice_id, number, version, state.now, self._clock())
            state.names.add(name)
            return Outcome(name=entry.voice, version=entry.version, state="written")
        if self._held(entry, state):  # from another pusher, which was first
            return Outcome(name=entry.voice, version=entry.version, state="unchanged")
        self._delete_deleted(entry.voice_id, state)
        has_former = any(one.voice_id == entry.voice_id for one in state.ours.values())
        return Outcome(
            name=entry.voice, version=entry.version, state="kept" if has_former else "missing", reason=fault
        )

    def _renew_list(self, state: _State) -> None:
        """List the server's voices again if the last list is old: another pusher may upload the same voices.
        Without an answer, the upload that follows shows whether the server still answers.
        """
        if self._clock() >= self._sightings.listed_at + LIST_SECONDS:
            with contextlib.suppress(Unavailable):
                self._see(self._server.voices(), state)

    def _fault_of(self, name: str, entry: ManifestEntry, state: _State) -> str | None:
        """Return why a voice cannot be uploaded under this name now, or None if it can."""
        reason, until = self._refused.get((name, entry.version_id), (None, 0.0))
        if reason is not None and self._clock() < until:
            return reason
        if name in state.ours:  # with another version, whose slot this one takes
            return fault_of(entry, self._kind)
        if name in state.names:
            return f"the server has a voice {name[:80]!a} that was not pushed from here"
        if self._is_full(state) and self._evictable(state) is None:
            return f"all {self._slots} slots are taken; a replaced version leaves after {GRACE_SECONDS:g} s"
        return fault_of(entry, self._kind)

    def _is_full(self, state: _State) -> bool:
        return len(state.ours) >= self._slots

    def _make_room(self, name: str, state: _State) -> bool:
        """Delete the voice that has this name, and a replaced version if all slots are taken. Returns False
        if the server had no answer.
        """
        if name in state.ours and not self._delete(name, state):
            return False
        leaving = self._evictable(state) if self._is_full(state) else None
        return leaving is None or self._delete(leaving, state)

    def _evictable(self, state: _State) -> str | None:
        """Return a replaced version that may be deleted to free a slot: its grace period is over, although
        its successor may not be uploaded yet. Returns None if there is none.
        """
        over = (name for name in self._replaced if name in state.ours and self._is_grace_over(name, state))
        return next(over, None)

    def _upload(self, name: str, entry: ManifestEntry, state: _State) -> str | None:
        """Upload a version. Returns why that could not be done, or None if it was."""
        try:
            source = self._registry.source(entry)
        except SpeakerRegistryError as error:
            if not concerns_one_voice(error):
                self._fail(entry, error, state)
            return error.message
        if not self._make_room(name, state):
            self._failed[entry.voice_id] = self._clock()
            return "the former version could not be deleted"
        consent, refusal = self._registry.mark.on(entry), None
        try:
            self._server.upload({"name": (None, name), "consent": (None, consent), **source})
        except UploadRefused as error:
            refusal = f"the server refuses it: {error}"
            if not self._is_there(entry, state):
                self._refused[name, entry.version_id] = refusal, self._clock() + REFUSED_SECONDS
        except Unavailable as error:
            self._fail(entry, error, state)
            self._see(self._server.voices(), state)
            if not self._held(entry, state):
                return error.message
            state.faults.remove(error)  # only the answer was lost
        self._failed.pop(entry.voice_id, None)
        return refusal

    def _is_there(self, entry: ManifestEntry, state: _State) -> bool:
        """Return whether the server has a version that it refused: another pusher may have been first."""
        if state.absent < _MAX_LISTS:
            self._see(self._server.voices(), state)
        is_there = self._held(entry, state) is not None
        state.absent += not is_there
        return is_there

    def _fail(self, entry: ManifestEntry, error: SpeakerRegistryError, state: _State) -> None:
        self._failed[entry.voice_id] = self._clock()
        state.faults.append(error)

    def _delete_deleted(self, voice_id: str, state: _State) -> None:
        """Delete the versions of a voice that the registry has deleted. While the version that replaces them
        cannot be uploaded, their grace period does not begin.
        """
        for name in [name for name, one in state.ours.items() if one.voice_id == voice_id]:
            if self._is_deleted(state.ours[name]):
                self._delete(name, state)

    def _is_deleted(self, one: Pushed) -> bool:
        return self._registry.is_deleted(f"{one.voice_id}@{one.number}", one.version)

    def _delete(self, name: str, state: _State) -> bool:
        """Delete a voice from the server. Returns False and records a fault if the server has no answer."""
        try:
            self._server.delete(name)
        except Unavailable as error:
            state.faults.append(error)
            return False
        state.ours.pop(name, None)
        state.names.discard(name)
        state.removed += 1
        return True


def _by_priority(
    voices: Mapping[str, ManifestEntry], state: _State, failed: Mapping[str, float]
) -> list[ManifestEntry]:
    """Return the voices in the order in which they get slots: first those that the server knows, then pinned
    ones, then the others in random order.

    If each run is a process of its own and ends early, the runs do not all end at the same voices. Voices
    that failed come last and take turns, so they keep no other one out.
    """
    known = {one.voice_id for one in state.ours.values()}
    return sorted(
        _shuffled(list(voices.values())),
        key=lambda one: (failed.get(one.voice_id, 0.0), one.voice_id not in known, not one.pinned),
    )


def _shuffled(entries: list[ManifestEntry]) -> list[ManifestEntry]:
    return random.sample(entries, len(entries))
