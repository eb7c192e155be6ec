"""The progress of campaigns, and the rules for their next steps. Pure: no clock, no bucket, no Redis.

The campaigns themselves are recorded in the documents of profiles, see `profile_document`.

A campaign covers all live voices. For each voice it prepares the version that `default` points to and the
newest one, if they need an artifact of the profile. Housekeeping extracts older versions after the promotion.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field

from services.shared.model.document import SpeakerDocument
from services.shared.model.profile_document import CampaignRecord
from services.shared.model.records import FailureRecord, Record, Version
from services.shared.model.speaker import Speaker, SpeakerId
from services.shared.model.status import ProfileStatus, profile_status
from speaker_registry.engine import Profile
from speaker_registry.errors import BY_CODE, InvalidRequest
from speaker_registry.names import slug_of

MAX_WALKS = 3
"""Largest number of walks through all voices. Each walk finds voices that were registered during the previous
one. Voices that are registered during the last walk are extracted after the promotion.
"""
NO_WORKER, NOT_COUNTED = (
    "no live worker has the encoder",
    "the voices are being counted anew after a loss of Redis",
)
"""Reasons why a campaign waits."""
_MEASURED_SECONDS = 5.0
"""The time over which the rate of a campaign is measured."""
MAX_NAMED = 20
"""Largest number of failed voices that a campaign lists. Their names are part of the profile's document,
which every process reads all the time.
"""
_MAX_MESSAGE = 200
"""Messages of failures are truncated to this many characters."""
_KEPT_AT_THE_END = {
    *("walk", "walked", "begun", "voices"),
    *("ready", "failed", "skipped", "named"),
    *("compared", "distances"),
}
"""The fields of `Progress` that are kept when a campaign is over. The others have names of voices that nobody
needs any more, or no meaning.
"""


class Distance(Record):
    """The distance between old and new values of one tensor, over all voices that were compared."""

    measure: Literal["cosine", "equal"]
    """The measure: `cosine` for numbers, and the share of `equal` values for codes."""
    voices: int = 0
    total: float = 0.0
    lowest: float = 1.0

    def with_voice(self, value: float) -> Self:
        """Return the distance after one more voice was compared."""
        return self.model_copy(
            update={
                "voices": self.voices + 1,
                "total": self.total + value,
                "lowest": min(self.lowest, value),
            }
        )


class FailedVoice(Record):
    """A voice that a campaign could not prepare."""

    namespace: str
    voice: str
    """The key of the voice's name."""
    version: int | None = None
    """The number of the version. None if the document of the voice could not be read."""
    code: str
    message: str

    @property
    def retryable(self) -> bool:
        return may_succeed(self.code)

    def is_of(self, speaker_id: SpeakerId) -> bool:
        """Return whether this is the failure of a speaker. A voice that could not be read is named by its
        slug.
        """
        return self.namespace == speaker_id.namespace and speaker_id.slug in {self.voice, slug_of(self.voice)}


class Progress(Record):
    """The progress of a campaign. If it is lost, the walk starts over, and existing artifacts are not
    extracted again.
    """

    walk: int = 0
    """The number of the walk, from 1. 0 means that the campaign has not begun."""
    namespace: str = ""
    after: str = ""
    """Namespace and key of the last voice that the walk has reached. The key is empty after the last one."""
    walked: bool = False
    """True if the walk has reached the last voice."""
    begun: int = 0
    """The number of voices whose extraction was started in this walk."""
    voices: int = 0
    """The total number of voices, as far as it is known."""
    ready: int = 0
    failed: int = 0
    skipped: int = 0
    """The number of voices that need no artifact of the profile or cannot have one."""
    under_way: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """The voices whose extraction is under way, with the ids of the extracted versions. Newer versions wait
    for the next walk, so that a voice that constantly gets new versions cannot keep the campaign from
    finishing.
    """
    forgiven: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """For voices under way, the jobs that failed in earlier campaigns. Their failures do not count, and the
    voices are retried once.
    """
    named: tuple[FailedVoice, ...] = ()
    """The first voices that failed, at most `MAX_NAMED`."""
    paced_until: float = 0.0
    """No further voices are started before this time, because of the rate limit."""
    measured_at: float = 0.0
    measured: int = 0
    """The number of finished voices at `measured_at`."""
    per_second: float | None = None
    compared: int = 0
    distances: Mapping[str, Distance] = Field(default_factory=dict)
    waits: str | None = None
    """The reason why no extractions are started now."""

    @classmethod
    def at_the_end(cls, campaign: CampaignRecord) -> Self | None:
        """Return the final progress of a campaign, or None if it is not over."""
        return cls.model_validate(campaign.result) if campaign.result is not None else None

    @property
    def done(self) -> int:
        return self.ready + self.failed + self.skipped

    @property
    def finished(self) -> bool:
        """Return whether the walk has reached every voice and no extraction is under way."""
        return self.walked and not self.under_way and (self.begun == 0 or self.walk >= MAX_WALKS)

    @property
    def complete(self) -> bool:
        """Return whether every voice that needs an artifact of the encoder has one."""
        return self.finished and not self.failed

    @property
    def coverage(self) -> float:
        """Return the share of voices that lack no artifact, from 0 to 1."""
        if not self.voices:
            return 1.0 if self.finished else 0.0
        return min(1.0, (self.ready + self.skipped) / self.voices)

    @property
    def eta_seconds(self) -> float | None:
        """Return the estimated time for the remaining voices at the current rate, or None if it is
        unknown.
        """
        left = max(0, self.voices - self.done)
        return left / self.per_second if self.per_second else None

    def at_its_end(self) -> dict[str, Any]:
        """Return what the record of a campaign that ends now keeps of its progress."""
        return self.model_dump(mode="json", include=_KEPT_AT_THE_END)

    def with_voice(self, state: Literal["ready", "failed", "skipped"]) -> Self:
        """Return the progress with one more finished voice."""
        return self.model_copy(update={state: getattr(self, state) + 1})

    def with_all_counted(self) -> Self:
        """Return the progress with at least as many voices as were reached. Some may have been registered
        since the voices were counted.
        """
        return self.model_copy(update={"voices": max(self.voices, self.done + len(self.under_way))})

    def with_failed(self, voice: FailedVoice) -> Self:
        """Return the progress with one more failed voice, which is listed if fewer than `MAX_NAMED` are."""
        known = {(one.namespace, one.voice) for one in self.named}
        counted = self.with_voice("failed")
        if len(known) >= MAX_NAMED or (voice.namespace, voice.voice) in known:
            return counted
        short = voice.having(message=voice.message[:_MAX_MESSAGE])
        return counted.model_copy(update={"named": (*self.named, short)})

    def without(self, speaker_id: SpeakerId) -> Self:
        """Return the progress without the name of a speaker among the failures. The counts stay."""
        named = tuple(one for one in self.named if not one.is_of(speaker_id))
        return self if named == self.named else self.having(named=named)

    def measured_now(self, now: float) -> Self:
        """Return the progress with an updated rate, which is measured every few seconds."""
        passed = now - self.measured_at
        if 0 <= passed < _MEASURED_SECONDS:
            return self
        rate = (self.done - self.measured) / passed if self.measured_at and passed > 0 else None
        return self.model_copy(
            update={"measured_at": now, "measured": self.done, "per_second": rate and max(0.0, rate)}
        )


def allowed(rate: float | None, paced_until: float, now: float, most: int) -> int:
    """Return how many voices may be started now: at most `most`, and at most as many as the rate allows in
    one second.
    """
    if rate is None:
        return most
    since = max(paced_until, now - max(1.0, 1.0 / rate))
    return min(most, int((now - since) * rate + 1e-6))


def paced(rate: float | None, paced_until: float, now: float, begun: int) -> float:
    """Return the new `paced_until` after this many voices were started."""
    if rate is None or not begun:
        return paced_until
    return max(paced_until, now - max(1.0, 1.0 / rate)) + begun / rate


@dataclass(frozen=True, slots=True)
class Examined:
    """The state of one voice with the encoder of a campaign."""

    state: Literal["ready", "failed", "skipped", "open"]
    missing: tuple[Version, ...] = ()
    """The versions that have neither an artifact nor a job. For a failed voice, these are the versions that
    could not be started.
    """
    failure: tuple[Version, FailureRecord] | None = None
    """The failed version of a voice, and the reason. None if its extraction could not be started."""


def examine(
    speaker: Speaker,
    versions: Iterable[Version],
    profile: Profile,
    fingerprint: str,
    wants: Callable[[Version], bool],
    forgiven: Collection[str] = (),
) -> Examined:
    """Return the state of some versions of a voice with an encoder.

    Args:
        wants: returns whether a version without an artifact of the profile needs one.
        forgiven: the ids of jobs whose failures do not count.
    """
    found = [
        (version, profile_status(speaker, version, profile, fingerprint))
        for version in (_without_failures(one, profile.name, forgiven) for one in versions)
        if wants(version) or version.artifact(profile.name) is not None
    ]
    needed = [(version, status) for version, status in found if not status.unsupported]
    missing = tuple(version for version, status in needed if _is_missing(status))
    states = {status.state for _, status in needed}
    if states & {"pending", "processing"}:
        return Examined("open", missing)
    if "failed" in states:
        version = next(version for version, status in needed if status.state == "failed")
        why = version.failure(profile.name, fingerprint)
        return Examined("failed", failure=(version, why) if why else None)
    return Examined("ready" if states else "skipped")


def _without_failures(version: Version, profile: str, forgiven: Collection[str]) -> Version:
    if not forgiven:
        return version
    kept = tuple(one for one in version.failures.get(profile, ()) if one.job not in forgiven)
    return version.having(failures={**version.failures, profile: kept})


def may_succeed(code: str) -> bool:
    """Return whether an extraction that failed with this code may succeed if it is repeated.

    An encoder that refused a clip will refuse it again. All other causes may have been temporary.
    """
    return not issubclass(BY_CODE.get(code, Exception), InvalidRequest)


def jobs_to_forgive(versions: Iterable[Version], profile: str, fingerprint: str) -> tuple[str, ...]:
    """Return the jobs that failed with an encoder for a reason that may have been temporary."""
    failures = filter(None, (version.failure(profile, fingerprint) for version in versions))
    return tuple(one.job for one in failures if may_succeed(one.code))


def _is_missing(status: ProfileStatus) -> bool:
    return status.state == "pending" and status.job_id is None


def versions_of(document: SpeakerDocument) -> tuple[Version, ...]:
    """Return the versions that a campaign prepares: the default one, and the newest one if it differs."""
    if not document.live:
        return ()
    return tuple({version.vuid: version for version in (document.default, document.newest)}.values())


def compared(
    before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, Literal["cosine", "equal"], float]]:
    """Yield, for each tensor, the similarity of the new values to the old ones, where 1 means that they are
    equal.

    Values that only one of the two tensors has count as different.
    """
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name], after[name]
        if np.issubdtype(old.dtype, np.integer):
            yield name, "equal", _share_of_equal(old, new)
        else:
            yield name, "cosine", _cosine(old, new)


def _share_of_equal(old: np.ndarray, new: np.ndarray) -> float:
    if old.ndim != new.ndim or max(old.size, new.size) == 0:
        return float(old.ndim == new.ndim)
    common = tuple(slice(min(sizes)) for sizes in zip(old.shape, new.shape, strict=True))
    return float(np.count_nonzero(old[common] == new[common]) / max(old.size, new.size))


def _cosine(old: np.ndarray, new: np.ndarray) -> float:
    one, other = (values.astype(np.float64).ravel() for values in (old, new))
    size = max(one.size, other.size)
    one, other = (np.pad(values, (0, size - values.size)) for values in (one, other))
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else float(np.array_equal(one, other))
