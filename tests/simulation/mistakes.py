"""Processes with one mistake each, which the simulation must find. A simulation that finds nothing proves
nothing. Each is a mistake that a developer could make in good faith, and each breaks something else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import ANY

import numpy as np

from services.registry_api.maintenance.garbage import Unreachable, unreachable
from services.registry_api.maintenance.rebuild import Rebuild
from services.registry_api.maintenance.repairs import Repairs
from services.registry_api.operations import extractions, registration
from services.registry_api.serving.event_stream import EventStream
from services.shared.audio import ReferenceAudio
from services.shared.bucket import keys
from services.shared.bucket.blobs import clip_of, read_artifact
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.store import Listing, ObjectUnavailable, Store
from services.shared.index.jobs import Jobs
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.speaker_index import VersionSelection
from services.shared.model.clock import Clock
from services.shared.model.domain import ArtifactRecord, SpeakerVersion
from services.shared.registry.publication import Attempt, Publisher
from services.shared.registry.repair import Decode
from speaker_registry.errors import ClipDamaged, Unavailable
from tests.simulation.process import Parts, SimulatedIndex
from tests.simulation.store import ModelledStore


@dataclass(frozen=True)
class Mistake:
    found_as: str
    """A regular expression for violations that the mistake is known by; empty: any."""
    parts: Parts = field(default_factory=Parts)
    within: int = 200
    """Histories until it is found, at most."""
    soonest: int = 0
    """The seed of a history that finds it. It is tried first: to get there from seed 0 can take a minute."""
    replaced: Mapping[str, Any] = field(default_factory=dict)
    """Maps `module.name` to the object that replaces ours."""
    odds: Mapping[str, float] = field(default_factory=dict)
    """Odds of the faults that the mistake needs, where the usual ones would find it late."""


class Trusting(SimulatedIndex):
    """Takes whatever server answers for the one that the index was built on."""

    def _prefix_of(self, info: Any) -> str:
        return f"some server/{super()._prefix_of(info).partition('/')[2]}"


def rewritten(script: str, right: str, wrong: str) -> type[SimulatedIndex]:
    """An index with a mistake in one of its scripts."""

    class Rewritten(SimulatedIndex):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            text = self._scripts[script].script
            assert isinstance(text, str)
            assert right in text, script
            self._scripts[script] = self.redis.register_script(text.replace(right, wrong))

    return Rewritten


class TakesNoCensus(rewritten("reserve", "if known and census_due()", "if false")):  # type: ignore[misc]
    """Gives numbers out again while those who had them before a loss of Redis may still use them."""

    def look(self, speaker_id: SpeakerId, selection: VersionSelection | None = None) -> IndexedSpeaker:
        found: IndexedSpeaker = super().look(speaker_id, selection)
        return replace(found, census="settled")


class ClaimsNoCensusIsDue(
    rewritten("reserve", "if known and census_due()", "if known and census_due() and not a.immutable")  # type: ignore[misc]
):
    """Lets an immutable voice be registered while an upload from before a loss of Redis may still land."""


def admit_none(rebuild: Rebuild) -> None:
    """Trust that one listing of the bucket told of every voice."""


def repair_without_reading(repairs: Repairs, speaker_id: SpeakerId) -> None:
    """Trust that whoever put a fact has told the index as well."""
    repairs._lost_jobs.replace(speaker_id, repairs._index.load(speaker_id))
    repairs._extract_missing(speaker_id, repairs._index.load(speaker_id))
    repairs._promoter.promote(speaker_id)


class WritesTheVersionAgain(Publisher):
    """Publishes as a worker that keeps its state in the voice's own record does."""

    def publish(
        self, attempt: Attempt, tensors: Mapping[str, np.ndarray], used_seconds: float | None = None
    ) -> bool:
        key = attempt.speaker_id.version_key(attempt.version.seq, attempt.version.record)
        self._store.put(key, attempt.version.record.to_json().encode())
        return super().publish(attempt, tensors, used_seconds)


class LooksAtNobody(Publisher):
    """Publishes although another attempt has taken over, and whatever else has landed."""

    def _may_publish(self, attempt: Attempt, record: ArtifactRecord) -> bool:
        super()._may_publish(attempt, record)
        return True

    def _winner(self, attempt: Attempt, listings: int) -> ArtifactRecord | None:
        return None


def believe_the_first_answer(store: Store, key: str) -> bytes | None:
    """Take an object that is said to be missing for one that was swept."""
    try:
        return store.get(key)
    except FileNotFoundError:
        return None


def parsed_by(parse: Callable[[str], keys.ParsedKey | None]) -> Callable[[Listing], list[keys.Keyed]]:
    return lambda listing: [(stored, parse(stored.key)) for stored in listing.objects]


def parse_generously(key: str) -> keys.ParsedKey | None:
    """Take everything among the data of a speaker for ours."""
    match key.split("/"):
        case [_, "v", _, "d", vuid, *_]:
            return keys.parse_key(key) or keys.BlobKey(vuid)
    return keys.parse_key(key)


def parse_without_looking(key: str) -> keys.ParsedKey | None:
    """Take everything among the records of a speaker for a record."""
    match key.split("/"):
        case [_, "v", _, "r", name]:
            return keys.parse_key(key) or keys.NewerRecordKey(int(name.split(".")[0]))
    return keys.parse_key(key)


def give_up_on_all(self: ModelledStore, key: str) -> bytes:
    """Takes one object that cannot be read for an outage of the store."""
    try:
        return _GET(self, key)
    except ObjectUnavailable:
        raise Unavailable("The object store is not available.") from None


_GET = ModelledStore.get


def the_smallest_marker(store: Store, clock: Clock) -> str:
    """Everybody puts a marker where there is none, and believes what is there then."""
    if not store.list("_registry/").objects:
        store.put(f"_registry/{clock.new_id()}", b"{}")
    return min(stored.key for stored in store.list("_registry/").objects).rpartition("/")[2]


def spare_strangers(*arguments: Any, **options: Any) -> Unreachable:
    """Keep foreign objects, also those of a deleted voice."""
    found = unreachable(*arguments, **options)
    return replace(found, certain=tuple(key for key in found.certain if keys.parse_key(key)))


def believe_the_rendition(
    store: Store, speaker_id: SpeakerId, version: SpeakerVersion, decode: Decode
) -> ReferenceAudio:
    """Take the bytes that are there for those that were stored."""
    key = speaker_id.blob_key(version.vuid, clip_of(version).rendition_sha256)
    try:
        return ReferenceAudio.from_bytes(store.get(key))
    except FileNotFoundError:
        raise ClipDamaged("The decoded clip is missing.") from None


def replace_nothing(
    self: extractions.Extractions, speaker_id: SpeakerId, version: SpeakerVersion, record: ArtifactRecord
) -> bytes:
    """Says that an artifact is lost, and leaves it at that."""
    return read_artifact(self._store, speaker_id, version, record)


def settle_what_may_be_overwritten(self: Any) -> IndexedSpeaker:
    """An immutable voice has only one version to count."""
    if self._settings.registration_policy == "immutable":
        found: IndexedSpeaker = self._index.look(self._id, VersionSelection(idempotency=self._idempotency))
        return found
    return _SETTLED(self)


_SETTLED = registration._Registration._settled


_NUMBERED_TWICE = (
    r"number \d+ is|was promised to|the index says .*, the facts say None|are out of order|has 2 versions"
)
LOSSES = {"redis_is_replaced": 0.01}
LOST_BYTES = {"bytes_are_lost": 0.03}


def claim_to_have_applied_everything(self: EventStream, applied: str) -> Any:
    """Acknowledges events before they were passed on."""
    return _RENEW(self, f"{10**15}-0")


_RENEW = EventStream._renew
REMEMBERS = Parts(remembers=True)
_FROM_MEMORY = r"answered from memory"
_STREAM = "services.registry_api.serving.event_stream"

MISTAKES = {
    "a process answers from memory without a lease": Mistake(
        _FROM_MEMORY,
        REMEMBERS,
        replaced={f"{_STREAM}.LEASE_SECONDS": 1e9},
        soonest=24,
    ),
    "a lease lasts longer than a change waits": Mistake(
        _FROM_MEMORY,
        REMEMBERS,
        replaced={f"{_STREAM}.LEASE_SECONDS": 20.0},
        soonest=24,
    ),
    "a change is acknowledged before every process has applied it": Mistake(
        _FROM_MEMORY,
        REMEMBERS,
        replaced={"services.shared.index.leases.Leases.settle": lambda self: None},
        soonest=5,
    ),
    "a process says that it has applied what it has not heard": Mistake(
        _FROM_MEMORY,
        REMEMBERS,
        replaced={f"{_STREAM}.EventStream._renew": claim_to_have_applied_everything},
        soonest=16,
    ),
    "an answer that an event overtook is kept": Mistake(
        _FROM_MEMORY,
        REMEMBERS,
        replaced={
            "services.registry_api.express.lane.ExpressLane._drop_speaker": (
                lambda self, speaker: self._answers.drop_speaker(speaker)
            )
        },
        soonest=77,
    ),
    "a worker trusts the clip that it reads": Mistake(
        r"was made from clip",
        replaced={"services.shared.registry.publication.sound_rendition": believe_the_rendition},
        odds=LOST_BYTES,
        soonest=2,
    ),
    "stored bytes are not held against their digests": Mistake(
        r"was made from clip|is not what its record says",
        replaced={"services.shared.bucket.blobs.sha256_digest": lambda data: ANY},
        odds=LOST_BYTES,
        soonest=2,
    ),
    "a lost artifact is not made again": Mistake(
        r"cannot be served|is lost and was not made again",
        replaced={f"{extractions.__name__}.Extractions.artifact_or_replacement": replace_nothing},
        odds=LOST_BYTES,
        soonest=10,
    ),
    "one answer is enough to take bytes for lost": Mistake(
        r"is said to be void whose bytes are there|the clip of \w+ is said to be lost|cannot be served",
        replaced={"services.shared.bucket.blobs._LOOKS": 1},
        odds={"store_hides": 0.05},
        soonest=40,
    ),
    "a job that Redis has lost is not found": Mistake(
        r"is not found by those who wait for it",
        replaced={"services.registry_api.operations.followed_jobs.FollowedJobs.get": Jobs.get},
        odds=LOSSES,
        soonest=4,
    ),
    "a process knows only the jobs that it claimed itself": Mistake(
        r"is not found by those who wait for it",
        replaced={"services.shared.index.jobs.SeenJobs.hear": lambda self, event: None},
        odds=LOSSES,
        soonest=4,
    ),
    "what is not ours outlives the voice": Mistake(
        r"left in the folder of a deleted voice",
        replaced={"services.registry_api.maintenance.garbage_collector.unreachable": spare_strangers},
        soonest=14,
    ),
    "the smallest marker names the bucket": Mistake(
        r"the bucket was \S+ and is \S+",
        replaced={"tests.simulation.process.bucket_identity": the_smallest_marker},
    ),
    "one unreadable object is taken for an outage": Mistake(
        r"is pending for \w+, job None|still waits for|the gate stays closed",
        replaced={"tests.simulation.store.ModelledStore.get": give_up_on_all},
        soonest=0,
    ),
    "an unreadable version is taken for none": Mistake(
        r"deleted, though \w+ lives|is not there",
        replaced={"services.shared.bucket.facts._unreadable": lambda key: None},
        soonest=2,
    ),
    "what is said to be missing is taken for swept": Mistake(
        r"deleted, though \w+ lives|is not there",
        replaced={"services.shared.bucket.facts.read_object": believe_the_first_answer},
        odds={"store_hides": 0.1},
        soonest=14,
    ),
    "what is not ours is collected": Mistake(
        r"deleted, though it is none of ours",
        replaced={"services.registry_api.maintenance.garbage.parsed": parsed_by(parse_generously)},
        soonest=15,
    ),
    "what is not ours cannot be parsed": Mistake(
        r"left of a dead version: ",
        replaced={"services.registry_api.maintenance.garbage.parsed": parsed_by(parse_without_looking)},
        soonest=1,
    ),
    "any server is trusted": Mistake(
        r"deleted, though \w+ lives|is not there|number \d+ is", Parts(index=Trusting), soonest=18
    ),
    "garbage collection without grace": Mistake(
        r"deleted, though \w+ lives|^missing: ", Parts(housekeeping={"grace_seconds": 0.0}), soonest=5
    ),
    "facts are never read again": Mistake(
        r"the index says .*, the facts say",
        replaced={"services.registry_api.maintenance.repairs.Repairs.repair": repair_without_reading},
        soonest=1,
    ),
    "a worker writes the version": Mistake(
        r"work .* created a version", Parts(publisher=WritesTheVersionAgain)
    ),
    "a delete leaves no fact": Mistake(
        r"the index says \d+, the facts say 0|is there after its delete",
        replaced={"services.registry_api.operations.deletion.commit": lambda store, key: None},
        soonest=1,
    ),
    "a late version comes back from the dead": Mistake(
        r"the index says .*, the facts say None|is there after its delete",
        Parts(index=rewritten("apply_version", "  if v.seq <= mark('tomb') then return 0 end\n", "")),
        soonest=24,
    ),
    "the last artifact wins": Mistake(
        r"artifact .*: the index says|artifact .* was .* and is ",
        Parts(
            publisher=LooksAtNobody,
            index=rewritten(
                "ready",
                "  if not current then\n    local begun",
                "  if true then alone = nil\n    local begun",
            ),
        ),
        soonest=1,
    ),
    "two may extract the same": Mistake(
        r"was claimed again while",
        Parts(index=rewritten("claim", "  if pending then", "  if false then")),
        soonest=1,
    ),
    "an artifact is put in force after the delete": Mistake(
        r"left of a dead version in the index",
        Parts(index=rewritten("ready", "if not live(r.vuid) then return 'dead' end", "")),
        soonest=8,
    ),
    "numbers are given out again": Mistake(
        _NUMBERED_TWICE, Parts(index=TakesNoCensus), odds=LOSSES | {"store_lands_late": 0.05}, soonest=3
    ),
    "an immutable voice needs no census": Mistake(
        r"is immutable and has 2 versions",
        Parts(index=ClaimsNoCensusIsDue, settings={"registration_policy": "immutable"}),
        replaced={f"{registration.__name__}._Registration._settled": settle_what_may_be_overwritten},
        odds=LOSSES | {"store_lands_late": 0.05},
    ),
    "a rebuild lists the bucket only once": Mistake(
        r"acknowledged at \d+, is not there",
        replaced={"services.registry_api.maintenance.rebuild.Rebuild._admit_missed": admit_none},
        odds=LOSSES | {"store_omits": 0.3},
        soonest=145,
    ),
    "what the census does not count is told": Mistake(
        _NUMBERED_TWICE,
        Parts(index=rewritten("apply_version", "if not counts(v.seq, v.vuid) then return 3 end", "")),
        soonest=76,
    ),
    "facts that were listed before a loss are told after it": Mistake(
        r"", Parts(index=rewritten("tell", "if a.listed_in ~= epoch_text", "if false")), soonest=30
    ),
    "who is not admitted yet is new": Mistake(
        r"acknowledged at \d+, is not there|are out of order",
        Parts(index=rewritten("reserve", "if not new or unsettled(a.now)", "if false")),
        soonest=23,
    ),
    "a reserved place is not exclusive": Mistake(
        r"is immutable and has 2 versions",
        Parts(index=rewritten("reserve", "if taken.seq > math.max(mark('tomb'), epoch)", "if false")),
        soonest=13,
    ),
    "a delete that never landed counts for ever": Mistake(
        r"still counts as on its way",
        Parts(index=rewritten("tell", "if deleting > 0 and since", "if false and since")),
        odds={"process_dies": 0.03},
        soonest=49,
    ),
    "a server that takes no writes is taken for a fault of ours": Mistake(
        r"raised .*(OutOfMemory|ReadOnly)Error",
        replaced={"services.shared.index.redis_access._MESSAGES": {}},
        odds={"redis_takes_no_writes": 0.02},
    ),
    "times of creation follow the clock": Mistake(
        r"are out of order",
        Parts(index=rewritten("reserve", "math.max(math.floor(a.now), mark('at') + 1)", "math.floor(a.now)")),
        soonest=1,
    ),
}
"""Maps a description of the mistake to the processes that make it."""
