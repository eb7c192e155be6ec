"""Promotes: moves `default` to a newer version once its artifacts are ready.

A promotion is an alias fact like a move by hand. It never moves `default` back, and never away from a version
that serves a profile which the newer one will not serve.
"""

from dataclasses import dataclass, replace

import structlog

from services.shared.bucket.facts import commit
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.store import Store
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.refusals import AliasMoved
from services.shared.index.speaker_index import PENDING_MOVE_SECONDS, SpeakerIndex
from services.shared.model.clock import Clock
from services.shared.model.domain import AliasFact, Speaker, SpeakerVersion
from services.shared.registry.newest_versions import NEWEST_MADE, newest_first
from services.shared.registry.status import Statuses
from speaker_registry.errors import Unavailable, VoiceDamaged, VoiceNotFound
from speaker_registry.names import DEFAULT

log = structlog.get_logger()

_TRIES = 3
"""A promotion is tried this often. Each try reads the current state."""


@dataclass(frozen=True, slots=True)
class _PromotionCandidate:
    """A version that `default` should move to, and its required profiles that are ready."""

    version: SpeakerVersion
    serves: frozenset[str]


class Promoter:
    """Promotes versions for publishers, registrations and housekeeping. Methods raise `Unavailable`."""

    def __init__(self, store: Store, index: SpeakerIndex, statuses: Statuses, clock: Clock) -> None:
        self._store = store
        self._index = index
        self._statuses = statuses
        self._clock = clock

    def promote(self, speaker_id: SpeakerId) -> bool:
        """Move `default` to the newest version whose extractions have all ended. Returns whether it moved.

        That version must have an artifact for each required profile for which the current `default` has one
        or will get one. `default` does not move if a caller moved it after the version was registered.
        """
        fact = self.prepare(speaker_id)
        return fact is not None and self._index.apply_alias(speaker_id, fact)

    def promote_or_put_off(self, speaker_id: SpeakerId) -> None:
        """Promote now. While bucket or Redis is unavailable, leave it to housekeeping."""
        try:
            self.promote(speaker_id)
        except Unavailable as error:
            log.warning("promotion.put_off", speaker=str(speaker_id), error=str(error))

    def prepare(
        self, speaker_id: SpeakerId, *, completing: tuple[str, str] | None = None
    ) -> AliasFact | None:
        """Do the first half of `promote`: commit the fact and return it. The caller puts it into the index.

        Returns None if no version is to be promoted now. Housekeeping tries again later.

        Args:
            completing: (vuid, profile) of an artifact that counts as ready although it is not in force yet.
                Its publisher puts the artifact and the promotion into the index at once.
        """
        vuid, _ = completing or (None, None)
        for _ in range(_TRIES):
            # Read the version that is being completed by its id, because it may have no artifact yet.
            indexed = self._index.look(speaker_id, replace(NEWEST_MADE, vuid=vuid))
            candidate = self._candidate(speaker_id, indexed, completing)
            if candidate is None:
                return None
            moved = indexed.speaker.alias_facts.get(DEFAULT)
            began = self._clock.monotonic()
            try:
                seq = self._index.reserve_promotion(
                    speaker_id,
                    DEFAULT,
                    expected=moved.seq if moved is not None else 0,
                    vuid=candidate.version.vuid,
                    serves=candidate.serves,
                )
            except AliasMoved:
                continue
            except (VoiceNotFound, VoiceDamaged):
                return None
            if self._clock.monotonic() - began > PENDING_MOVE_SECONDS:
                return None  # other processes no longer wait for this move
            fact = AliasFact.promotion(seq, candidate.version, self._clock.new_id())
            commit(self._store, speaker_id.alias_key(fact))
            log.info("speaker.promoted", speaker=str(speaker_id), version=candidate.version.number)
            return fact
        log.info("promotion.put_off", speaker=str(speaker_id))
        return None

    def is_due(self, speaker_id: SpeakerId, indexed: IndexedSpeaker) -> bool:
        """Return whether `default` should move."""
        return self._candidate(speaker_id, indexed) is not None

    def _candidate(
        self,
        speaker_id: SpeakerId,
        indexed: IndexedSpeaker,
        completing: tuple[str, str] | None = None,
    ) -> _PromotionCandidate | None:
        """Return the version that `default` should move to, or None.

        Args:
            indexed: the newest versions that have artifacts, and the version being completed.
        """
        speaker = indexed.speaker
        if not speaker.live:
            return None
        moved = speaker.alias_facts.get(DEFAULT)
        chosen = moved.seq if moved is not None and not moved.automatic else 0
        vuid, _ = completing or (None, None)
        for seen, version in newest_first(self._index.look, speaker_id, indexed, vuid):
            if version.rank <= speaker.default.rank or version.seq < chosen:
                break
            ready, done = self._progress(seen, version, completing)
            if done and ready and ready >= _served_or_coming(self._statuses, indexed, speaker.default):
                return _PromotionCandidate(version, ready)
        return None if _is_certain(speaker) else self._incumbent(indexed, completing)

    def _incumbent(
        self, indexed: IndexedSpeaker, completing: tuple[str, str] | None
    ) -> _PromotionCandidate | None:
        """Return the current `default` if it has an artifact, so that a fact says that it is the default."""
        version = indexed.speaker.default
        ready, _ = self._progress(indexed, version, completing)
        return _PromotionCandidate(version, ready) if ready else None

    def _progress(
        self, indexed: IndexedSpeaker, version: SpeakerVersion, completing: tuple[str, str] | None
    ) -> tuple[frozenset[str], bool]:
        """Return the version's required profiles that are ready, and whether all extractions have ended."""
        states = {
            one.profile.name: one.state_of_current for one in self._statuses.of_required(indexed, version)
        }
        if completing is not None and completing[0] == version.vuid and completing[1] in states:
            states[completing[1]] = "ready"
        ready = frozenset(name for name, state in states.items() if state == "ready")
        return ready, all(state in {"ready", "failed"} for state in states.values())


def _is_certain(speaker: Speaker) -> bool:
    """Return whether no version that is registered later can become the default unless an alias is moved.

    Until `default` is moved, the oldest version is the default, and a slow upload may still be registered
    with a smaller number. No number is smaller than 1, which nearly all default versions have.
    """
    return DEFAULT in speaker.aliases or speaker.default.number == 1


def held_back(statuses: Statuses, indexed: IndexedSpeaker, version: SpeakerVersion) -> str | None:
    """Say why `default` will not move to a newer version even after all its extractions have ended.

    Returns None if `default` will move to the version, or has moved to it or past it.
    """
    default, versions = indexed.speaker.default, indexed.speaker.versions
    if versions.index(version) <= versions.index(default):
        return None
    missing = _served_or_coming(statuses, indexed, default) - _served_or_coming(statuses, indexed, version)
    if not missing:
        return None
    return (
        f"`default` stays at version {default.number}: version {version.number} will have no artifact "
        f"for {', '.join(sorted(missing))}, and engines that use that would lose the voice"
    )


def _served_or_coming(statuses: Statuses, indexed: IndexedSpeaker, version: SpeakerVersion) -> set[str]:
    required = statuses.of_required(indexed, version)
    return {one.profile.name for one in required if one.state != "failed"}
