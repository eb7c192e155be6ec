"""Finds speakers by name, or by the id of their voice.

While the index cannot be trusted or reached, speakers are read from their facts. Knows no HTTP.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from services.shared.bucket.facts import read_certain
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.store import Store
from services.shared.index.gate import GateClosed
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.refusals import voice_damaged, voice_unreadable
from services.shared.index.speaker_index import SpeakerIndex, VersionSelection
from services.shared.model.domain import SpeakerVersion
from services.shared.registry.newest_versions import NEWEST_MADE, newest_first
from services.shared.registry.status import Statuses
from speaker_registry.errors import (
    SpeakerRegistryError,
    Unavailable,
    VoiceDamaged,
    VoiceNotFound,
    VoiceUnreadable,
)
from speaker_registry.names import (
    DEFAULT,
    LATEST,
    parse_reference,
    parse_speaker_name,
    parse_voice_id,
    split_reference,
)

_NOTHING_ELSE = VersionSelection()
Look = Callable[[SpeakerId, VersionSelection], IndexedSpeaker]
"""Looks up what a selection needs of a speaker."""
SpeakerAndVersion = tuple[IndexedSpeaker, SpeakerVersion]


class Speakers:
    """Finds speakers and their versions. All methods may raise `Unavailable`."""

    def __init__(self, store: Store, index: SpeakerIndex, statuses: Statuses) -> None:
        self._store = store
        self._index = index
        self._statuses = statuses
        self.reading_facts: Callable[[], AbstractContextManager[None]] = nullcontext
        """Returns a context in which facts are read. The API limits how many of them are active at once."""

    def find(self, namespace: str, name: str, selection: VersionSelection = _NOTHING_ELSE) -> IndexedSpeaker:
        """Return a live speaker by its name or, if no voice has that name, by its voice's id.

        The speaker has the versions that `SpeakerIndex.look` reads.

        Raises:
            InvalidVoiceName, VoiceNotFound, VoiceDamaged, VoiceUnreadable.
        """
        return self._find(namespace, name, selection)[1]

    def _find(
        self, namespace: str, name: str, selection: VersionSelection, look: Look | None = None
    ) -> tuple[SpeakerId, IndexedSpeaker]:
        speaker_id, indexed = self.locate(namespace, name, look or self.look_up, selection)
        if indexed.speaker.unreadable:
            raise voice_unreadable(name)
        if indexed.speaker.damaged:
            raise voice_damaged(name)
        if not indexed.speaker.live:
            raise VoiceNotFound(f"Voice '{name}' not found", param="name")
        return speaker_id, indexed

    def identify(self, namespace: str, name: str) -> SpeakerId:
        """Return the id of the speaker that `find` would look for. The speaker need not exist.

        Raises:
            InvalidVoiceName.
        """
        parsed = parse_speaker_name(name)
        if parse_voice_id(parsed.key) is None:
            return SpeakerId.of(namespace, parsed)
        return self.locate(namespace, name, self.look_up)[0]

    def locate(
        self,
        namespace: str,
        name: str,
        look: Look,
        selection: VersionSelection = _NOTHING_ELSE,
    ) -> tuple[SpeakerId, IndexedSpeaker]:
        """Look up a speaker by name with `look` or, if no voice has that name, by its voice's id.

        The speaker need not be live.
        """
        parsed = parse_speaker_name(name)
        by_name = SpeakerId.of(namespace, parsed)
        named = look(by_name, selection)
        voice_id = parse_voice_id(parsed.key)
        if voice_id is None or named.speaker.live or named.speaker.damaged or named.speaker.unreadable:
            return by_name, named
        by_id = SpeakerId(namespace, voice_id.slug)
        meant = look(by_id, replace(selection, vuid=voice_id.vuid))
        # If the voice with this id was deleted, a new voice with its name is not meant.
        return (by_name, named) if meant.speaker.by_vuid(voice_id.vuid) is None else (by_id, meant)

    def find_version(
        self, namespace: str, name: str, reference: int | str, look: Look | None = None
    ) -> SpeakerAndVersion:
        """Return a live speaker, and the version that a number or alias stands for. Reads few other versions.

        `latest` is the newest version that is ready or, if none is, the newest version.

        Args:
            look: looks up speakers, by default `look_up`.

        Raises:
            InvalidVoiceName, VoiceNotFound, VoiceDamaged, VoiceUnreadable, VersionNotFound, AliasNotFound.
        """
        speaker_id, indexed = self._find(namespace, name, _selection_of(reference), look)
        if reference != LATEST:
            return indexed, indexed.speaker.resolve(reference)
        for seen, version in newest_first(self.look_up, speaker_id, indexed):
            if self._statuses.state(seen, version) == "ready":
                return seen, version
        return indexed, indexed.speaker.newest

    def find_versions(
        self, namespace: str, voices: Iterable[str]
    ) -> list[SpeakerAndVersion | SpeakerRegistryError]:
        """Find many versions as `find_version` does, with one round trip to the index for nearly all of them.

        Args:
            voices: each a name, `name@version` or `name@alias`.

        Returns:
            For each voice, its speaker and version, or the error why it was not found.
        """
        wanted = [_parsed(namespace, voice) for voice in voices]
        pairs = [(one.speaker_id, _selection_of(one.reference)) for one in wanted if isinstance(one, _Wanted)]
        seen = self._look_up_many(list(dict.fromkeys(pairs)))

        def look(speaker_id: SpeakerId, selection: VersionSelection) -> IndexedSpeaker:
            return seen.get((speaker_id, selection)) or self.look_up(speaker_id, selection)

        return [self._find_wanted(namespace, one, look) for one in wanted]

    def _find_wanted(
        self, namespace: str, wanted: "_Wanted | SpeakerRegistryError", look: Look
    ) -> SpeakerAndVersion | SpeakerRegistryError:
        if isinstance(wanted, SpeakerRegistryError):
            return wanted
        try:
            return self.find_version(namespace, wanted.name, wanted.reference, look)
        except (VoiceDamaged, VoiceUnreadable) as error:
            return error
        except Unavailable:
            raise
        except SpeakerRegistryError as error:
            return error

    def _look_up_many(
        self, wanted: Sequence[tuple[SpeakerId, VersionSelection]]
    ) -> dict[tuple[SpeakerId, VersionSelection], IndexedSpeaker]:
        """Look up many speakers at once; none while the index cannot be trusted or reached."""
        try:
            return dict(zip(wanted, self._index.look_many(wanted), strict=True))
        except (GateClosed, Unavailable):
            return {}

    def look_up(self, speaker_id: SpeakerId, selection: VersionSelection = _NOTHING_ELSE) -> IndexedSpeaker:
        """Look up a speaker in the index, or in its facts while the index cannot be trusted or reached.

        A speaker that is read from the facts has all versions, whatever `selection` says.
        """
        try:
            return self._index.look(speaker_id, selection)
        except (GateClosed, Unavailable):
            with self.reading_facts():
                return IndexedSpeaker(read_certain(self._store, speaker_id), from_facts=True)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A parsed reference to a version."""

    speaker_id: SpeakerId
    name: str
    reference: int | str


def _parsed(namespace: str, voice: str) -> _Wanted | SpeakerRegistryError:
    name, reference = split_reference(voice)
    try:
        parsed = parse_reference(DEFAULT if reference is None else reference)
        return _Wanted(SpeakerId.of(namespace, parse_speaker_name(name)), name, parsed)
    except SpeakerRegistryError as error:
        return error


def _selection_of(reference: int | str) -> VersionSelection:
    if reference == LATEST:
        return NEWEST_MADE
    return VersionSelection(number=reference if isinstance(reference, int) else None)
