"""Summarizes the state of the registry for the overview. Counts stop at a limit, and say so."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from services.registry_api.dependencies import Services
from services.registry_api.pages.kept import Kept
from services.registry_api.wire import profile_rendering
from services.shared.model.status import worst
from services.shared.registry.pages import keys_in_view, read_live, speaker_page
from services.shared.registry.speakers import FoundSpeaker
from speaker_registry.errors import Unavailable
from speaker_registry.schemas import FailedProof, JobSummary, Profile

MAX_COUNTED = 250
"""The states of this many voices are counted. With any number of voices, the page then takes less than 1.5
times as long as with 100.
"""
_STEP = 100
KEPT_SECONDS, LONG_KEPT_SECONDS = 3.0, 20.0
"""Counts are cached for this long: those of up to `_STEP` voices, and those of more voices, which take longer
to count.
"""


@dataclass(frozen=True, slots=True)
class VoiceCounts:
    """The states in which the voices of a namespace are."""

    examined: int = 0
    more: bool = False
    """True if there are more voices than were examined."""
    states: Counter[str] = field(default_factory=Counter)
    """State of the whole voice -> number of voices."""
    by_profile: dict[str, Counter[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Concern:
    """A problem that an operator should look into."""

    id: str
    """Tells the problem from all others, also when its text changes."""
    text: str
    action: str
    """This tells what the operator can do about it."""
    address: str | None = None
    """The path of the page that shows it, below the root of all pages."""
    serious: bool = True


@dataclass(slots=True)
class ShownWorker:
    """A worker, with its state for each of its profiles."""

    name: str
    device: str | None = None
    serves: list[str] = field(default_factory=list)
    """The profiles whose current encoder it has."""
    others: list[str] = field(default_factory=list)
    """The profiles that are made with another encoder than the one it has."""
    failed: list[str] = field(default_factory=list)
    """The profiles that it does not serve, because its encoder failed its proof."""
    untrained: bool = False
    proven_at: float | None = None
    """When the oldest of its proofs was made, in Unix seconds."""
    extracted_last_hour: int | None = None


class Situation:
    """Counts voices, and keeps the counts for a moment. Safe to use from several threads."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._counts = Kept(self._count, kept_seconds)

    def voices(self, namespace: str) -> VoiceCounts:
        """Count the states of the first `MAX_COUNTED` voices by name."""
        return self._counts.of(namespace)

    def _count(self, namespace: str) -> VoiceCounts:
        """List the names once, and read the documents `_STEP` at a time. While the view cannot list the
        names, count one page of the bucket.
        """
        services = self._services
        try:
            keys = keys_in_view(services.speakers, namespace, limit=MAX_COUNTED + 1)
            return self._counted(self._of_view(namespace, keys[:MAX_COUNTED]), more=len(keys) > MAX_COUNTED)
        except Unavailable:
            page = speaker_page(services.speakers, services.store, namespace, limit=_STEP)
            return self._counted(page.speakers, more=page.more)

    def _of_view(self, namespace: str, keys: Sequence[str]) -> Iterator[FoundSpeaker]:
        """Yield live speakers. Raises `Unavailable` if the view is lost meanwhile, because reading hundreds
        of documents from the bucket would take too long for a page.
        """
        for first in range(0, len(keys), _STEP):
            found = read_live(self._services.speakers, namespace, keys[first : first + _STEP])
            if found and not any(speaker.of_view for _, speaker in found):
                raise Unavailable("The view was lost while voices were counted.")
            yield from (speaker for _, speaker in found)

    def _counted(self, speakers: Iterable[FoundSpeaker], *, more: bool) -> VoiceCounts:
        profiles, states = self._services.profiles, Counter[str]()
        by_profile = {profile.name: Counter[str]() for profile in profiles.required}
        for speaker in speakers:
            statuses = profiles.wanted_statuses(speaker, speaker.document.default)
            states[worst(statuses)] += 1
            for status in statuses:
                by_profile.setdefault(status.profile.name, Counter())[status.state] += 1
        return VoiceCounts(states.total(), more, states, by_profile)

    def total(self, namespace: str) -> int | None:
        """Return the number of voices, or None while the view is not complete or cannot be read."""
        with suppress(Unavailable):
            used = self._services.speakers.usage(namespace)
            return used.voices if used is not None else None
        return None

    def jobs(self, namespace: str) -> JobSummary:
        """Return the counts of jobs. The last entry of `rates` is for the last day."""
        services = self._services
        return services.jobs.records.summary(namespace, services.profiles.names)


def kept_seconds(counts: VoiceCounts) -> float:
    """Return for how long counts are shown."""
    return KEPT_SECONDS if counts.examined <= _STEP else LONG_KEPT_SECONDS


def profiles_of(services: Services) -> list[Profile]:
    """Return all profiles with their workers, required ones first."""
    profiles = profile_rendering.profiles(services, list(services.catalogue))
    return sorted(profiles, key=lambda one: (not one.required, one.id))


def workers_of(profiles: Sequence[Profile]) -> list[ShownWorker]:
    """Return all workers that live or failed a proof, by name."""
    found: dict[str, ShownWorker] = {}
    for profile in profiles:
        for live in profile.live_workers:
            worker = found.setdefault(live.worker, ShownWorker(live.worker))
            current = live.fingerprint == profile.fingerprint
            (worker.serves if current else worker.others).append(profile.id)
            worker.device = live.device
            worker.untrained |= current and profile.untrained
            proofs = [at for at in (worker.proven_at, live.proven_at) if at is not None]
            worker.proven_at = min(proofs, default=None)
            if live.extracted_last_hour is not None:
                worker.extracted_last_hour = (worker.extracted_last_hour or 0) + live.extracted_last_hour
        for proof in profile.failed_proofs:
            worker = found.setdefault(proof.worker, ShownWorker(proof.worker))
            worker.device = proof.device
            worker.failed.append(profile.id)
    return [found[name] for name in sorted(found)]


def reason_of(proof: FailedProof, profile: Profile) -> str:
    """Return why a proof failed, without the name of the profile, which workers put first for their logs."""
    return proof.reason.removeprefix(f"{profile.id}: ")


def concerns(profiles: Sequence[Profile], counts: VoiceCounts, failures: int) -> Iterator[Concern]:
    """Yield the problems that need attention, the most urgent first.

    Args:
        failures: the number of jobs that failed within a day.
    """
    for profile in profiles:
        waiting = counts.by_profile.get(profile.id, Counter())["pending"]
        if profile.problem:
            what = f"The current encoder of {profile.id} is unknown."
            yield Concern(f"unknown-{profile.id}", what, profile.problem, "/profiles")
        elif profile.required and not profile.workers and not profile.not_extractable:
            yield _unserved(profile.id, waiting)
    for profile in profiles:
        for proof in profile.failed_proofs:
            yield Concern(
                f"proof-{profile.id}/{proof.worker}",
                f"Worker {proof.worker} does not serve {profile.id} on {proof.device}: "
                f"{reason_of(proof, profile)}",
                "Its encoder computes wrong results. Check the libraries and the device of the worker.",
                "/profiles",
            )
    for profile in profiles:
        failed = counts.by_profile.get(profile.id, Counter())["failed"]
        if failed:
            what = f"{_voices(failed)} failed for {profile.id}."
            where = f"/voices?state=failed&profile={profile.id}"
            yield Concern(f"failed-{profile.id}", what, "See why", where)
    if failures:
        jobs = "1 job" if failures == 1 else f"{failures:,} jobs"
        what = f"{jobs} failed within a day."
        yield Concern("jobs", what, "See why", "/jobs?state=failed", serious=False)
    for profile in profiles:
        if profile.untrained and profile.required:
            what = f"{profile.id} is made with untrained weights: its voices are useless for speech."
            action = "Start its worker with published weights."
            yield Concern(f"untrained-{profile.id}", what, action, "/profiles", serious=False)


def _unserved(profile: str, waiting: int) -> Concern:
    action = f"Start a worker with SPEAKER_EXTRACTOR_PROFILES={profile}."
    if not waiting:
        text = f"No worker serves {profile}: new voices will wait."
    else:
        text = f"{_voices(waiting)} {'waits' if waiting == 1 else 'wait'} for {profile}: no worker serves it."
    where = f"/voices?state=pending&profile={profile}" if waiting else "/profiles"
    return Concern(f"unserved-{profile}", text, action, where)


def _voices(count: int) -> str:
    return "1 voice" if count == 1 else f"{count} voices"
