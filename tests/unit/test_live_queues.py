"""The queue of a profile's live jobs has no fingerprint in its name. These tests say why it needs none."""

from dataclasses import replace
from functools import partial

import pytest

from services.extractor_worker.process import ServedProfiles
from services.shared.model.profile_document import promoted
from services.shared.registry.profiles import Profiles
from services.shared.registry.publish import EncoderReplaced, Provenance, start
from tests.memory_records import PROFILE, A, B, Process
from tests.memory_registry import ECAPA, NS, AllServed, Registry, World, id_of


def as_made_with(registry: Registry, fingerprint: str) -> Provenance:
    return replace(registry.provenance(ECAPA), fingerprint=fingerprint)


def test_only_workers_with_the_current_encoder_take_live_jobs(world: World):
    """A candidate never takes one, and a worker whose encoder was replaced takes none a second later."""
    process, other = Process.settled(world), Process.settled(world)
    process.announce(A)
    process.announce(B)
    with_a, with_b = (ServedProfiles(other.profiles, {PROFILE: encoder}) for encoder in (A, B))
    assert (with_a.has(PROFILE), with_b.has(PROFILE)) == (True, False)
    process.promote(B, force=True)
    world.pass_time(1.0)
    assert (with_a.has(PROFILE), with_b.has(PROFILE)) == (False, True)


def test_a_worker_that_has_not_heard_of_a_promotion_leaves_a_job_of_the_new_encoder_to_others(
    world: World, registry: Registry
):
    """Within a second of a promotion, a worker with the former encoder may take a job that is one for the new
    encoder. If it ended that job, the voice would wait until housekeeping finds it.
    """
    former = registry.fingerprints.current[ECAPA.name]
    registry.fingerprints.change(ECAPA.name, "f2")
    job = registry.register("wren", 1).jobs[ECAPA.name]
    with pytest.raises(EncoderReplaced):
        start(
            registry.speakers,
            registry.jobs,
            registry.profiles,
            id_of("wren"),
            job,
            provenance=as_made_with(registry, former),
        )
    assert registry.jobs.record(NS, job).state == "queued"
    assert registry.work()
    made = registry.document("wren").newest.artifact(ECAPA.name, "f2")
    assert made is not None


def test_a_worker_that_left_a_job_to_others_knows_of_the_promotion(world: World):
    """Otherwise it would take the same job again from the queue."""
    process, other = Process.settled(world), Process.settled(world)
    process.announce(A)
    process.announce(B)
    served = ServedProfiles(other.profiles, {PROFILE: A})
    assert served.has(PROFILE)
    process.profiles.change(PROFILE, partial(promoted, fingerprint=B), by="operator", did="promote")
    assert served.has(PROFILE), "it has not heard of the promotion"
    assert Profiles(other.catalogue, other.profiles, AllServed()).is_current_now(PROFILE, B)
    assert not served.has(PROFILE)
