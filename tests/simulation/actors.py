"""The actions of clients, workers and operators, as ordinary code against the registry's own classes. The
code does not know that it is simulated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from services.registry_api.operations.artifact_upload import ReadyArtifact
from services.registry_api.operations.cancellation import cancel
from services.registry_api.operations.precomputation import Precomputation
from services.registry_api.operations.registration import (
    Registered,
    Upload,
)
from services.shared.bucket.facts import read_speaker
from services.shared.bucket.keys import SpeakerId
from services.shared.index.jobs import JobRecord
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.speaker_index import VersionSelection
from services.shared.model.domain import AliasFact
from services.shared.registry.publication import Attempt
from speaker_registry.errors import (
    ExtractorFailed,
    InvalidArtifact,
    JobNotFound,
    LeaseExpired,
    SpeakerRegistryError,
    Unavailable,
)
from speaker_registry.names import DEFAULT, parse_speaker_name
from tests.encoders import make_current
from tests.simulation.clips import clip_of, content_of, embedding_of
from tests.simulation.ledger import Violation
from tests.simulation.process import Process
from tests.simulation.queue import ModelledJob
from tests.simulation.world import World

NAMESPACE = "default"
NAMES = ("alice", "Bob", "Ünal Ö")
PATIENCE_SECONDS = 60.0

Result = TypeVar("Result")


def speaker_of(name: str) -> SpeakerId:
    return SpeakerId.of(NAMESPACE, parse_speaker_name(name))


@dataclass(frozen=True)
class Request:
    """An upload as its client has it in hand: the same again when it is repeated."""

    name: str
    content: int
    """Stands for the clip."""
    key: str | None
    spoken: bool
    """True if the upload has a transcript."""
    given: bool = False
    """A ready embedding instead of a clip."""


def upload(process: Process, request: Request) -> Registered:
    described = Upload(
        name=parse_speaker_name(request.name),
        consent="yes",
        ref_text="words" if request.spoken else None,
        idempotency_key=request.key,
    )
    if request.given:
        return process.operations.registrations.register_embedding(
            NAMESPACE, described, embedding_of(request.content)
        )
    clip, data = clip_of(request.content)
    return process.operations.registrations.register_clip(NAMESPACE, described, data, clip)


def delete(process: Process, name: str) -> IndexedSpeaker:
    return process.operations.deletions.delete(NAMESPACE, name)


def move_by_hand(world: World, process: Process, name: str, alias: str) -> None:
    """Move an alias as a call for it does."""
    speaker_id = speaker_of(name)
    speaker = process.operations.speakers.find(NAMESPACE, name, VersionSelection(limit=1000)).speaker
    vuid = world.random.choice(speaker.versions).vuid
    if alias == DEFAULT:
        world.ledger.moved_by_hand.add(vuid)
    seq = process.index.reserve_alias(speaker_id, alias)
    fact = AliasFact(seq, alias, vuid, process.opened.clock.new_id())
    process.opened.store.put(speaker_id.alias_key(fact), b"{}")
    process.index.apply_alias(speaker_id, fact)
    process.opened.leases.settle()
    if alias == DEFAULT:
        world.ledger.moves_acknowledged[speaker_id] = max(
            seq, world.ledger.moves_acknowledged.get(speaker_id, 0)
        )


def precompute(world: World, process: Process, name: str) -> None:
    """Do what a call to `cache` with `wait` does."""
    operations = process.operations
    profile = world.random.choice([None, *sorted(process.opened.catalogue.names)])
    call = Precomputation(
        speakers=operations.speakers,
        statuses=operations.statuses,
        extractions=operations.extractions,
        jobs=operations.jobs,
        namespace=NAMESPACE,
        name=name,
        reference=DEFAULT,
        profile=profile,
    )
    look, deadline = call.start(force=world.random.random() < 0.3), world.time + PATIENCE_SECONDS
    while not look.finished and world.time < deadline:
        world.sleep(5.0)
        look = call.look()


def follow(world: World, process: Process, job_id: str) -> None:
    """Do what a call to a job with `wait` does."""
    jobs, deadline = process.operations.jobs, world.time + PATIENCE_SECONDS
    while world.time < deadline:
        try:
            job = jobs.get(NAMESPACE, job_id)
        except JobNotFound:
            raise Violation(f"{job_id} is not found by those who wait for it") from None
        if job.finished:
            check_outcome(world, job)
            return
        world.sleep(5.0)


def check_outcome(world: World, job: JobRecord) -> None:
    """A job that succeeded has left an artifact."""
    version = read_speaker(world.truth, SpeakerId(job.namespace, job.slug)).by_vuid(job.vuid)
    if job.state == "succeeded" and version and not version.artifact(job.profile) and not version.void:
        raise Violation(f"{job.id} is said to have succeeded, and there is no artifact")


def extract_some(world: World, process: Process, name: str) -> list[str]:
    """Extract any version as a call for it does. Returns the ids of the jobs that the answer names."""
    indexed = process.operations.speakers.find(NAMESPACE, name, VersionSelection(limit=1000))
    version = world.random.choice(indexed.speaker.versions)
    profile = world.random.choice(sorted(process.opened.catalogue.names))
    claims = process.operations.extractions.ensure(
        speaker_of(name), version, [profile], force=world.random.random() < 0.3
    )
    return [claim.job_id for claim in claims.values() if claim.job_id]


def cancel_job(world: World, process: Process, job_id: str) -> None:
    """Cancel a job as a call for it does."""
    losses = world.counts["redis_is_replaced"]
    cancel(process.opened, NAMESPACE, job_id)
    world.ledger.canceled[job_id] = losses


def bring_artifact(world: World, process: Process, name: str) -> None:
    """Upload a ready artifact."""
    indexed = process.operations.speakers.find(NAMESPACE, name, VersionSelection(limit=1000))
    version = world.random.choice(indexed.speaker.versions)
    profile = world.random.choice(sorted(process.opened.catalogue.names))
    encoder = process.opened.profile_records.current(profile)
    if version.record.clip is None or encoder is None:
        return
    content = world.ledger.authors[version.vuid].content
    width = process.opened.catalogue.get(profile).embedding_width or 0
    embedding = np.array([content, *(world.random.random() for _ in range(width - 1))], np.float32)
    given = ReadyArtifact(tensors={"speaker_embedding": embedding}, fingerprint=encoder.fingerprint)
    process.operations.uploads.store(speaker_of(name), version, profile, given)


def start(world: World, process: Process) -> None:
    """Start a process, again and again until that succeeds."""
    while not process.up:
        try:
            process.start()
        except Unavailable:
            world.sleep(2.0)
    if process.fingerprints:
        announce(world, process)


def announce(world: World, process: Process) -> None:
    """Announce the worker's profiles, as it does first, and promote its encoders."""
    for profile, fingerprint in process.fingerprints.items():
        say = partial(make_current, process.opened.profile_records, profile, fingerprint)
        patiently(world, say)
    process.in_service = True


def collect_garbage(process: Process, name: str) -> None:
    process.housekeeper.garbage.collect(speaker_of(name))


# -- workers


def work_on(world: World, process: Process, job: ModelledJob, holder: Callable[[], object]) -> None:
    """Take a job from the queue to its end. The queue hears of it unless the worker died."""
    try:
        again = extract(world, process, job)
    except SpeakerRegistryError:
        again = True
    process.finish(job, holder(), again=again)


def extract(world: World, process: Process, job: ModelledJob) -> bool:
    """Returns whether the job is to be tried again."""
    speaker_id = SpeakerId.parse(job.arguments["speaker"])
    provenance = process.provenance(job.profile)
    attempt = patiently(world, lambda: process.publisher.take(job.id, speaker_id, provenance))
    if attempt is None:
        return False
    try:
        tensors = encode(world, process, attempt)
        patiently(world, lambda: process.publisher.publish(attempt, tensors))
    except SpeakerRegistryError as error:
        patiently(world, partial(process.publisher.fail, attempt, error))
        return error.retryable and attempt.number < attempt.max_attempts
    return False


def encode(world: World, process: Process, attempt: Attempt) -> dict[str, np.ndarray]:
    """Slow at times, never twice the same, and sometimes impossible."""
    if attempt.number > attempt.max_attempts:
        raise LeaseExpired("Too often.")
    clip = patiently(world, lambda: process.publisher.read_clip(attempt))
    world.sleep(world.random.choice([0.0, 1.0, 20.0]))
    process.publisher.progress(attempt, "encoding", 1)
    if world.happens("extraction_is_hopeless"):
        raise InvalidArtifact(f"Hopeless for the {world.random_bits(16)}th time.")
    if world.happens("extraction_fails"):
        raise ExtractorFailed(f"Failed for the {world.random_bits(16)}th time.")
    width = attempt.provenance.profile.embedding_width
    assert width
    noise = [world.random.random() for _ in range(width - 1)]
    return {"speaker_embedding": np.array([content_of(clip), *noise], np.float32)}


def patiently(world: World, step: Callable[[], Result]) -> Result:
    """Repeat a step while bucket or index are unavailable, as a worker does."""
    deadline = world.time + PATIENCE_SECONDS
    while True:
        try:
            return step()
        except Unavailable:
            if world.time > deadline:
                raise
            world.sleep(2.0)
