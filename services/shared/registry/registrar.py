"""The operations on speakers: look up, delete, extract and promote. `registration` adds the registering.

Order of every write: blobs, then the fact (the commit), then the index. A crash between any two of them
leaves what was served before; housekeeping finishes what was committed. Knows no HTTP and no encoder.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from services.shared.bucket.fact_pages import Cursor, page_of_slugs
from services.shared.bucket.facts import commit, read_certain
from services.shared.bucket.keys import SpeakerId
from services.shared.index.gate import GateClosed
from services.shared.index.jobs import SeenJobs
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.refusals import AliasMoved, voice_damaged, voice_unreadable
from services.shared.index.speaker_index import (
    COMMIT_SECONDS,
    PENDING_MOVE_SECONDS,
    ClaimResult,
    VersionSelection,
)
from services.shared.model.domain import (
    AliasFact,
    Speaker,
    SpeakerVersion,
    TombstoneFact,
    without_build,
)
from services.shared.queue.rq_jobs import queue_name
from services.shared.registry.parts import RegistryParts
from services.shared.registry.status import (
    ProfileStatus,
    cache_unsupported,
    profile_status,
    unsupported_reason,
    waiting_reason,
    wanted_profiles,
    worst,
)
from services.shared.telemetry import tracing
from speaker_registry.engine import Profile
from speaker_registry.errors import (
    PreconditionFailed,
    QuotaExceeded,
    Unavailable,
    VoiceDamaged,
    VoiceNotFound,
)
from speaker_registry.names import DEFAULT, LATEST, SpeakerName, parse_speaker_name, parse_voice_id
from speaker_registry.schemas import ArtifactState

log = structlog.get_logger()

NAMES_SEARCHED = 5_000
"""One page of a search for a part of the name looks at this many names."""
MAX_PAGE_OF_FACTS = 101
"""Limits the speakers whose records are read for one page. The API's largest page needs this many."""
_PAGE = 20
"""Versions are read this many at a time to find the newest that is ready. Nearly always it is in the first
page.
"""
PAGE_BYTES = 1024**2
"""A page of versions ends after the version whose record brings the total to this many bytes. A hundred
versions with the longest texts would be an answer of 6 MB or more.
"""
_TRIES = 3
"""A promotion, or a delete by id, is tried this often. Each try reads the current state."""


@dataclass(frozen=True, slots=True)
class _PromotionCandidate:
    """A version that `default` should move to, and the required profiles that are ready for it."""

    version: SpeakerVersion
    serves: frozenset[str]


@dataclass(frozen=True, slots=True)
class SpeakerPage:
    """One page of a namespace's live speakers."""

    entries: Sequence[tuple[str, IndexedSpeaker]]
    """Each speaker, with the cursor after which the list goes on behind it."""
    last: str
    """The cursor behind everything that was examined for this page, which may be more than the entries."""
    more: bool
    of_facts: bool = False
    """True if the page was made from the facts, because the index could not answer."""

    @property
    def speakers(self) -> list[IndexedSpeaker]:
        return [indexed for _, indexed in self.entries]


def _newest(
    versions: Sequence[SpeakerVersion], before: int | None, limit: int | None
) -> list[SpeakerVersion]:
    """Return the newest `limit` versions with a number below `before`, newest first."""
    return [one for one in reversed(versions) if before is None or one.number < before][:limit]


def _page(indexed: IndexedSpeaker, before: int | None, limit: int) -> list[SpeakerVersion]:
    """Return the newest `limit` versions with a number below `before`, newest first, or fewer.

    All versions but the last have less than `PAGE_BYTES` together. The index counts whole records. If it did
    not end the page, only texts count, which are most of a large record.
    """
    page, room = [], PAGE_BYTES
    for version in _newest(indexed.speaker.versions, before, limit):
        if version.number < indexed.page_end or room <= 0:
            break  # the oldest version, and those that aliases point to, may be behind a gap
        page.append(version)
        room -= version.record.text_bytes
    return page


_NOTHING_ELSE = VersionSelection()
_NEWEST_MADE = VersionSelection(limit=_PAGE, made=True)


def too_many_builds(version: SpeakerVersion, profile: str, most: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"The artifact of version {version.number} of voice '{version.record.name}' for profile '{profile}' "
        f"was made {most} times already, which is as often as SPEAKER_MAX_BUILDS accepts. Register the clip "
        "as a new version with dedupe=false, or raise the cap.",
        param="profile",
    )


class Registrar:
    """Every method takes a namespace first and raises our errors: `VoiceNotFound`, `Unavailable`, …"""

    def __init__(self, parts: RegistryParts) -> None:
        self._store = parts.store
        self._index = parts.index
        self._announcements = parts.announcements
        self._catalogue = parts.catalogue
        self._dispatcher = parts.dispatcher
        self._settings = parts.settings
        self._clock = parts.clock
        self._run_all = parts.run_all
        self.seen_jobs = SeenJobs()
        self.reading_facts: Callable[[], AbstractContextManager[None]] = nullcontext
        """Surrounds reads that are answered from the facts. The API limits how many there are at a time."""

    # -- reading

    def find(self, namespace: str, name: str, selection: VersionSelection = _NOTHING_ELSE) -> IndexedSpeaker:
        """A live speaker by its name; where no voice has that name, by its voice's id. It has the versions
        that `SpeakerIndex.look` reads.

        Raises:
            InvalidVoiceName, VoiceNotFound, VoiceDamaged.
        """
        return self._find(namespace, name, selection)[1]

    def _find(
        self, namespace: str, name: str, selection: VersionSelection
    ) -> tuple[SpeakerId, IndexedSpeaker]:
        speaker_id, indexed = self._locate(namespace, name, self.look_up, selection)
        if indexed.speaker.unreadable:
            raise voice_unreadable(name)
        if indexed.speaker.damaged:
            raise voice_damaged(name)
        if not indexed.speaker.live:
            raise VoiceNotFound(f"Voice '{name}' not found", param="name")
        return speaker_id, indexed

    def identify(self, namespace: str, name: str) -> SpeakerId:
        """Return the speaker that a name or a voice's id stands for, as `find` does. It need not exist.

        Raises:
            InvalidVoiceName; Unavailable.
        """
        parsed = parse_speaker_name(name)
        if parse_voice_id(parsed.key) is None:
            return SpeakerId.of(namespace, parsed)
        return self._locate(namespace, name, self.look_up)[0]

    def _locate(
        self,
        namespace: str,
        name: str,
        look: Callable[[SpeakerId, VersionSelection], IndexedSpeaker],
        selection: VersionSelection = _NOTHING_ELSE,
    ) -> tuple[SpeakerId, IndexedSpeaker]:
        """Look for a speaker by name, and where there is none, by the id that the name may be."""
        parsed = parse_speaker_name(name)
        by_name = SpeakerId.of(namespace, parsed)
        named = look(by_name, selection)
        voice_id = parse_voice_id(parsed.key)
        if voice_id is None or named.speaker.live or named.speaker.damaged or named.speaker.unreadable:
            return by_name, named
        by_id = SpeakerId(namespace, voice_id.slug)
        meant = look(by_id, replace(selection, vuid=voice_id.vuid))
        # Not another life of the same name: whoever has its id does not mean that.
        return (by_name, named) if meant.speaker.by_vuid(voice_id.vuid) is None else (by_id, meant)

    def find_version(
        self, namespace: str, name: str, reference: int | str
    ) -> tuple[IndexedSpeaker, SpeakerVersion]:
        """A live speaker and the version that a reference stands for. Reads few other versions.

        Raises `InvalidVoiceName`, `VoiceNotFound`, `VoiceDamaged`, `VersionNotFound`, `AliasNotFound`.
        """
        number = reference if isinstance(reference, int) else None
        selection = VersionSelection(number=number) if reference != LATEST else _NEWEST_MADE
        speaker_id, indexed = self._find(namespace, name, selection)
        if reference != LATEST:
            return indexed, indexed.speaker.resolve(reference)
        for seen, version in self._newest_first(speaker_id, indexed):
            if self.state(seen, version) == "ready":
                return seen, version
        return indexed, indexed.speaker.newest

    def _newest_first(
        self, speaker_id: SpeakerId, indexed: IndexedSpeaker, vuid: str | None = None
    ) -> Iterator[tuple[IndexedSpeaker, SpeakerVersion]]:
        """All versions that have artifacts, the one of this vuid, and perhaps others, each with the look that
        it was read by. `indexed` is a look at the newest of them; older ones are looked up a page at a time.
        """
        before = None
        while True:
            page = _newest(indexed.speaker.versions, before, _PAGE if indexed.left_out else None)
            yield from ((indexed, version) for version in page)
            if not indexed.left_out or not page:
                return
            before = page[-1].number
            indexed = self.look_up(speaker_id, replace(_NEWEST_MADE, vuid=vuid, before=before))

    def look_up(self, speaker_id: SpeakerId, selection: VersionSelection = _NOTHING_ELSE) -> IndexedSpeaker:
        """Look up a speaker in the index, or in its facts while the index cannot be trusted or reached.

        The facts contain all versions, whatever `selection` says.
        """
        try:
            return self._index.look(speaker_id, selection)
        except (GateClosed, Unavailable):
            with self.reading_facts():
                return IndexedSpeaker(read_certain(self._store, speaker_id))

    def page(self, namespace: str, *, after: str = "", limit: int, part: str | None = None) -> SpeakerPage:
        """Return up to `limit` live speakers by key, from the one after the cursor `after`.

        With `part`, only speakers whose key contains it are returned, of the next `NAMES_SEARCHED`.

        While the index cannot be trusted or reached, the page is made from the facts: of up to
        `MAX_PAGE_OF_FACTS` speakers, in the order that `fact_pages` tells.
        """
        try:
            return self._page_of_index(namespace, Cursor.parse(after).key, limit, part)
        except (GateClosed, Unavailable):
            page = self._page_of_facts(namespace, after, limit)
            if part is None:
                return page
            named = [entry for entry in page.entries if part in entry[1].speaker.newest.record.key]
            return replace(page, entries=named)

    def _page_of_index(self, namespace: str, after: str, limit: int, part: str | None) -> SpeakerPage:
        searched = limit if part is None else NAMES_SEARCHED
        keys = self._index.names(namespace, after=after, limit=searched + 1)
        named = [key for key in keys[:searched] if part is None or part in key]
        more, last = len(keys) > searched, keys[:searched][-1] if keys else after
        if len(named) > limit:
            more, last = True, named[limit - 1]
        ids = [SpeakerId.of(namespace, SpeakerName(key, key)) for key in named[:limit]]
        entries = [
            (key, indexed)
            for key, indexed in zip(named, self._index.look_many(ids), strict=False)
            if indexed.speaker.live
        ]
        return SpeakerPage(entries, last=last, more=more)

    def _page_of_facts(self, namespace: str, after: str, limit: int) -> SpeakerPage:
        """Lists the namespace's folders, and reads the records of the speakers on the page."""
        with self.reading_facts():
            page = page_of_slugs(self._store, namespace, after, min(limit, MAX_PAGE_OF_FACTS))
            found: dict[str, Speaker] = {}

            def read(slug: str) -> None:
                found[slug] = read_certain(self._store, SpeakerId(namespace, slug))

            self._run_all([partial(read, slug) for slug in page.slugs])
        entries = [
            (cursor, IndexedSpeaker(found[slug]))
            for slug, cursor in zip(page.slugs, page.cursors, strict=True)
            if found[slug].live
        ]
        last = page.cursors[-1] if page.cursors else after
        return SpeakerPage(entries, last=last, more=page.more, of_facts=True)

    def profile_status(self, indexed: IndexedSpeaker, version: SpeakerVersion, profile: str) -> ProfileStatus:
        """Return the status of a version for one profile. Raises `ProfileUnknown`."""
        facts = self._catalogue.get(profile)
        return profile_status(indexed, version, facts, self._announcements.current(profile))

    def profile_statuses(self, indexed: IndexedSpeaker, version: SpeakerVersion) -> list[ProfileStatus]:
        """Return the status for each wanted profile and each other profile that has an artifact or a job."""
        present = {record.profile for record in (*version.record.given, *version.artifacts.values())}
        present |= {
            pending.profile for pending in indexed.pending_extractions if pending.vuid == version.vuid
        }
        names = dict.fromkeys((*self.wanted(version), *sorted(present & self._catalogue.names)))
        return [self.explained(self.profile_status(indexed, version, name)) for name in names]

    def explained(self, status: ProfileStatus) -> ProfileStatus:
        """Add the reason to a status that waits because no worker serves its profile.

        Meant for answers, because it may ask Redis, once a second for each profile.
        """
        if status.state != "pending":
            return status
        return replace(status, reason=self.waiting_reason(status.profile.name))

    def waiting_reason(self, profile: str) -> str | None:
        """Say why no worker extracts for this profile, or return None if one does. May ask Redis."""
        return None if self._announcements.is_served(profile) else waiting_reason(profile)

    def missing(self, indexed: IndexedSpeaker, version: SpeakerVersion) -> list[ProfileStatus]:
        """Return the wanted profiles that have no artifact and no job. Housekeeping starts them."""
        statuses = [self.profile_status(indexed, version, name) for name in self.wanted(version)]
        return [one for one in statuses if one.state == "pending" and one.job_id is None]

    def state(self, indexed: IndexedSpeaker, version: SpeakerVersion) -> ArtifactState:
        """Return the state of the whole version: the worst state of its wanted profiles."""
        return worst(self.profile_status(indexed, version, profile) for profile in self.wanted(version))

    def wanted(self, version: SpeakerVersion) -> tuple[str, ...]:
        return wanted_profiles(version, self._catalogue.required)

    def versions(
        self, namespace: str, name: str, *, before: int | None, limit: int
    ) -> tuple[IndexedSpeaker, list[SpeakerVersion], bool]:
        """Return a live speaker, a page of its versions, and whether there are more versions.

        The page has the versions below the number `before`, newest first. It may be shorter than `limit`
        although there are more: see `PAGE_BYTES`. Raises the same errors as `find`.
        """
        indexed = self.find(
            namespace, name, VersionSelection(before=before, limit=limit, max_bytes=PAGE_BYTES)
        )
        page = _page(indexed, before, limit)
        more = bool(page) and page[-1] is not indexed.speaker.versions[0]  # the oldest is always read
        return indexed, page, more

    # -- deleting

    def delete(
        self, namespace: str, name: str, *, check: Callable[[IndexedSpeaker], None] | None = None
    ) -> IndexedSpeaker:
        """Make a voice unresolvable at once, with all its versions and jobs. Returns what was there.

        Args:
            name: the voice's name or its id, as in `find`.
            check: raises if this is not what is to be deleted.

        Raises:
            VoiceNotFound; PreconditionFailed: it changed after it was checked. Unavailable.
        """
        for _ in range(_TRIES):
            speaker_id, before = self._locate(namespace, name, self._index.look)
            if check is not None and before.speaker.live:
                check(before)
            # By its id, only this life of the name is meant: another must not take its place unnoticed.
            by_id = speaker_id != SpeakerId.of(namespace, parse_speaker_name(name))
            started = self._clock.monotonic()
            try:
                place = self._index.reserve_tombstone(
                    speaker_id, unchanged=before.speaker.seq if check is not None or by_id else None
                )
                break
            except VoiceNotFound:
                raise VoiceNotFound(f"Voice '{name}' not found", param="name") from None
            except AliasMoved:
                if check is not None:
                    raise PreconditionFailed(f"Voice '{name}' has just changed.", param="If-Match") from None
        else:
            raise Unavailable(f"Voice '{name}' is being changed all the time.", retry_after_seconds=1)
        if self._clock.monotonic() - started > COMMIT_SECONDS:
            # Uploads that are repeated from now on may be answered with what this would delete.
            raise Unavailable("Deleting took too long; send the request again.", retry_after_seconds=1)
        fact = TombstoneFact(place.seq, place.number, place.created_at)
        commit(self._store, speaker_id.tombstone_key(fact, self._clock.new_id()))
        killed = self._index.apply_tombstone(speaker_id, place.seq, place.number, place.created_at)
        log.info("speaker.deleted", speaker=str(speaker_id), versions=killed)
        return before

    # -- extracting

    def ensure(
        self, speaker_id: SpeakerId, version: SpeakerVersion, profiles: Sequence[str], *, force: bool = False
    ) -> dict[str, ClaimResult]:
        """Make sure that each profile's artifact exists or is being made. Pending jobs are joined.

        Args:
            force: extract again even if there is an artifact (it serves until the new one is ready) or a
            failure.

        Raises:
            ProfileUnknown; CacheUnsupported: nothing can be extracted for it.
        """
        claims = {}
        for name in profiles:
            profile = self._catalogue.get(name)
            if version.record.given and version.artifact(name) is not None and not force:
                claims[name] = ClaimResult("ready")
                continue
            if reason := unsupported_reason(version, profile):
                raise cache_unsupported(reason)
            claims[name] = self.claim(speaker_id, version, profile, force=force, limited=True)
            if claims[name].outcome == "full":
                raise too_many_builds(version, name, self._settings.max_builds)
        return claims

    def claim(
        self,
        speaker_id: SpeakerId,
        version: SpeakerVersion,
        profile: Profile,
        *,
        force: bool = False,
        limited: bool = False,
        steal: str | None = None,
    ) -> ClaimResult:
        """Claim an extraction, and enqueue its job if the claim is ours.

        With `limited`, an artifact that was made as often as the settings accept is not made again.
        """
        announced = self._announcements.current(profile.name)
        fingerprint = announced.fingerprint if announced else ""
        job_id = f"job_{self._clock.new_id()}"

        job: dict[str, Any] = {
            "id": job_id,
            "ns": speaker_id.namespace,
            "slug": speaker_id.slug,
            "name": version.record.name,
            "vuid": version.vuid,
            "number": version.number,
            "profile": profile.name,
            "fingerprint": fingerprint,
            "forced": force,
            "max_attempts": self._settings.max_attempts,
            "queue": queue_name(profile.name),
            "attempt": 0,
            **({"traceparent": parent} if (parent := tracing.traceparent()) else {}),
        }
        claim = self._index.claim(
            speaker_id,
            vuid=version.vuid,
            profile=profile.name,
            fingerprint=fingerprint,
            base=without_build(version.artifact_key(profile.name, fingerprint, 0)),
            force=force,
            max_builds=self._settings.max_builds if limited else None,
            steal=steal,
            job=job,
        )
        if claim.job_id:  # ours, or the one to join
            known = job | {"id": claim.job_id}
            self.seen_jobs.put_claimed(known, build=claim.build, at=self._clock.now())
        if claim.outcome == "claimed":
            self._dispatcher.enqueue(job_id, profile.name, {"job": job_id, "speaker": str(speaker_id)})
        return claim

    # -- promoting

    def promote(self, speaker_id: SpeakerId) -> None:
        """Move `default` to the newest version that is done.

        That version must have an artifact for every required profile that is served now, or about to be.
        `default` does not move if a caller moved it after the version was registered.
        """
        fact = self.prepare_promotion(speaker_id)
        if fact is not None:
            self._index.apply_alias(speaker_id, fact)

    def prepare_promotion(
        self, speaker_id: SpeakerId, *, completing: tuple[str, str] | None = None
    ) -> AliasFact | None:
        """Do the first half of `promote`: commit the fact, but do not tell the index yet.

        Returns None if there is nothing to promote, or not yet. In that case housekeeping looks again.

        Args:
            completing: (vuid, profile) of an artifact that is to be taken for ready, so that its publisher
                can have both take effect at once.
        """
        vuid, _ = completing or (None, None)
        for _ in range(_TRIES):
            # The version that is just being completed may have no artifact yet.
            indexed = self._index.look(speaker_id, replace(_NEWEST_MADE, vuid=vuid))
            candidate = self._promotion_candidate(speaker_id, indexed, completing)
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
                return None  # no process waits for it any more
            fact = AliasFact.promotion(seq, candidate.version, self._clock.new_id())
            commit(self._store, speaker_id.alias_key(fact))
            log.info("speaker.promoted", speaker=str(speaker_id), version=candidate.version.number)
            return fact
        log.info("promotion.put_off", speaker=str(speaker_id))
        return None

    def promotable(self, speaker_id: SpeakerId, indexed: IndexedSpeaker) -> bool:
        """Return whether `default` should move."""
        return self._promotion_candidate(speaker_id, indexed) is not None

    def _promotion_candidate(
        self,
        speaker_id: SpeakerId,
        indexed: IndexedSpeaker,
        completing: tuple[str, str] | None = None,
    ) -> "_PromotionCandidate | None":
        """Return the version that `default` should be moved to, or None.

        `indexed` is a look at the newest versions that have artifacts, and at the one being completed.
        """
        speaker = indexed.speaker
        if not speaker.live:
            return None
        moved = speaker.alias_facts.get(DEFAULT)
        chosen = moved.seq if moved is not None and not moved.automatic else 0
        vuid, _ = completing or (None, None)
        for seen, version in self._newest_first(speaker_id, indexed, vuid):
            if version.rank <= speaker.default.rank or version.seq < chosen:
                break
            ready, done = self._progress(seen, version, completing)
            if done and ready and ready >= self._served_or_coming(indexed, speaker.default):
                return _PromotionCandidate(version, ready)
        return None if self._is_certain(speaker) else self._incumbent(indexed, completing)

    def _is_certain(self, speaker: Speaker) -> bool:
        """Return whether no version can become the default by coming before it.

        If no move says otherwise, the oldest version is the default, and a slow upload may yet come before
        it. Nothing comes before number 1, which nearly all default versions have.
        """
        return DEFAULT in speaker.aliases or speaker.default.number == 1

    def _incumbent(
        self, indexed: IndexedSpeaker, completing: tuple[str, str] | None
    ) -> "_PromotionCandidate | None":
        """Return the default itself if it serves anything, so that its place is written down."""
        version = indexed.speaker.default
        ready, _ = self._progress(indexed, version, completing)
        return _PromotionCandidate(version, ready) if ready else None

    def _progress(
        self, indexed: IndexedSpeaker, version: SpeakerVersion, completing: tuple[str, str] | None
    ) -> tuple[frozenset[str], bool]:
        """Return the version's required profiles that are ready, and whether it will never have more."""
        states = {
            name: self.profile_status(indexed, version, name).state for name in self._catalogue.required
        }
        if completing is not None and completing[0] == version.vuid and completing[1] in states:
            states[completing[1]] = "ready"
        ready = frozenset(name for name, state in states.items() if state == "ready")
        return ready, all(state in {"ready", "failed"} for state in states.values())

    def held_back(self, indexed: IndexedSpeaker, version: SpeakerVersion) -> str | None:
        """Say why `default` will not move to this version, although it is newer.

        The version will have all artifacts that it can have. Returns None if `default` will move to
        it, or has moved on.
        """
        default, versions = indexed.speaker.default, indexed.speaker.versions
        if versions.index(version) <= versions.index(default):
            return None
        missing = self._served_or_coming(indexed, default) - self._served_or_coming(indexed, version)
        if not missing:
            return None
        return (
            f"`default` stays at version {default.number}: version {version.number} will have no artifact "
            f"for {', '.join(sorted(missing))}, and engines that use that would lose the voice"
        )

    def _served_or_coming(self, indexed: IndexedSpeaker, version: SpeakerVersion) -> set[str]:
        statuses = [self.profile_status(indexed, version, name) for name in self._catalogue.required]
        return {one.profile.name for one in statuses if one.artifact or one.stale or one.state != "failed"}
