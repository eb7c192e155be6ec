"""Tests of the turns of campaigns, over voices of several namespaces, on a registry in memory.

The test itself plays the candidate's worker, and the processes that go on with a campaign.
"""

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import Any

import pytest

from services.registry_api.campaigns import preparation
from services.registry_api.campaigns.campaign import NOT_COUNTED
from services.registry_api.campaigns.control import Campaigns
from services.registry_api.campaigns.kept_progress import KeptProgress
from services.registry_api.maintenance.erase import erase
from services.registry_api.maintenance.settle import settle
from services.registry_api.operations.cancel import cancel
from services.registry_api.operations.delete import delete
from services.shared.bucket.layout import profile_key
from services.shared.bucket.store import ObjectUnavailable
from services.shared.model.profile_document import CampaignRecord
from services.shared.model.speaker import SpeakerId
from services.shared.registry.fail import fail
from services.shared.registry.publish import Attempt, start
from speaker_registry.errors import (
    EncoderUnknown,
    ExtractorOutOfMemory,
    InvalidAudio,
    PermissionDenied,
    SpeakerRegistryError,
)
from speaker_registry.names import parse_speaker_name
from tests import memory_registry
from tests.memory_records import PROFILE, A, B, C, Process
from tests.memory_registry import PROFILES, OwnTime, Registry, World

NAMESPACES = ("anna", "bert", "cleo")


class Fleet:
    """A registry whose voices are ready, and a live worker of a candidate."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.records = Process.settled(world)
        for profile in PROFILES:
            self.records.announce(A, profile.name)
        self.records.announce(B)
        self.beat()
        world.fingerprints = self.records.profiles  # type: ignore[assignment]
        self.registry: Registry = world.process()
        self.registry.rebuild()
        self.made: list[tuple[str, str]] = []
        self.campaigns = self.restarted()

    def restarted(self) -> Campaigns:
        """Return the campaigns as a process sees them that has just started."""
        self.campaigns = Campaigns(
            store=self.world.store,
            speakers=self.registry.speakers,
            blobs=self.registry.blobs,
            jobs=self.registry.jobs,
            profiles=self.registry.profiles,
            profile_records=self.records.profiles,
            workers=self.records.workers,
            catalogue=self.records.catalogue,
        )
        return self.campaigns

    def beat(self, fingerprint: str = B) -> None:
        self.records.workers.beat("w2", {PROFILE: fingerprint})

    def ready(self, namespace: str, name: str, content: int = 1) -> None:
        """Register a voice, and have the current encoders extract it."""
        self.register(namespace, name, content)
        while self.world.queue.waiting:
            attempt = self.take()
            assert attempt is not None
            assert self.registry.publish(attempt)

    def register(self, namespace: str, name: str, content: int = 1) -> None:
        with pytest.MonkeyPatch.context() as there:
            there.setattr(memory_registry, "NS", namespace)
            self.registry.register(name, content)

    def take(self) -> Attempt | None:
        """Begin the job that waits longest, as a worker of its encoder does."""
        job_id, arguments = next(iter(self.world.queue.waiting.items()))
        del self.world.queue.waiting[job_id]
        speaker_id = SpeakerId.parse(arguments["speaker"])
        record = self.registry.jobs.record(speaker_id.namespace, job_id)
        provenance = memory_registry.Provenance(
            profile=self.registry.profiles.get(record.profile),
            fingerprint=record.fingerprint,
            extractor={"model": record.fingerprint},
            untrained=False,
            worker="w",
        )
        self.made.append((str(speaker_id), record.fingerprint))
        return start(
            self.registry.speakers,
            self.registry.jobs,
            self.registry.profiles,
            speaker_id,
            job_id,
            provenance=provenance,
        )

    def work(self, *, failing: str = "", why: SpeakerRegistryError | None = None) -> None:
        """Do every job that waits. Those of the voice `failing` fail, because of its clip or of `why`."""
        while self.world.queue.waiting:
            attempt = self.take()
            if attempt is not None and str(attempt.speaker_id) == failing:
                registry = self.registry
                error = why or InvalidAudio("no")
                fail(registry.speakers, registry.jobs, registry.profiles, attempt, error)
                if not registry.jobs.record(attempt.speaker_id.namespace, attempt.job_id).finished:
                    self.world.queue.waiting[attempt.job_id] = {"speaker": failing}
            elif attempt is not None:
                self.registry.publish(attempt)

    def turns(self, campaign: CampaignRecord, **options: Any) -> Iterator[CampaignRecord]:
        """Let the campaign go on and its worker work, and yield it after each turn until it ends."""
        while (seen := self.seen(campaign)).open:
            self.campaigns.runner.turn()
            self.work(**options)
            yield self.seen(campaign)
        yield seen

    def finish(self, campaign: CampaignRecord, **options: Any) -> CampaignRecord:
        ended = [one for one in islice(self.turns(campaign, **options), 40) if not one.open]
        assert ended, f"the campaign does not end: {self.campaigns.get(PROFILE, campaign.id)}"
        return ended[0]

    def seen(self, campaign: CampaignRecord) -> CampaignRecord:
        return self.campaigns.get(PROFILE, campaign.id).campaign

    def by_candidate(self) -> list[str]:
        """Return the voices that the candidate's worker has taken, once for each time."""
        return sorted(speaker for speaker, fingerprint in self.made if fingerprint == B)


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet(World())
    for namespace in NAMESPACES:
        fleet.ready(namespace, "one")
        fleet.ready(namespace, "two")
    return fleet


ALL = [f"{namespace}/{name}" for namespace in NAMESPACES for name in ("one", "two")]


def test_a_voice_that_failed_keeps_its_campaign_from_promoting(fleet: Fleet) -> None:
    """A person decides whether the voices that failed may keep their former artifacts."""
    campaign = fleet.campaigns.promote_when_complete(PROFILE, B, by="me").campaign
    assert fleet.finish(campaign, failing="bert/one").state == "complete"
    assert fleet.records.profiles.read_uncached(PROFILE).fingerprint == A


def test_no_namespace_is_forgotten_wherever_the_process_is_restarted(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first walk reaches every voice once, although each turn is that of another process."""
    monkeypatch.setattr(preparation, "WINDOW", 1)
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    for _ in fleet.turns(campaign):
        fleet.restarted()
    assert fleet.by_candidate() == ALL
    assert fleet.campaigns.get(PROFILE, campaign.id).progress.walk == 2


def test_each_voice_is_prepared_once_whether_it_was_made_or_failed(fleet: Fleet) -> None:
    """A voice that is prepared again and again costs workers without end."""
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.finish(campaign, failing="bert/one")
    second = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.finish(second, failing="bert/one")
    assert fleet.by_candidate() == ALL


def test_a_pause_outlives_the_process_and_a_cancel_begins_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator stops the extra load for as long as they want."""
    monkeypatch.setattr(preparation, "WINDOW", 1)
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    fleet.work()
    fleet.campaigns.pause(PROFILE, campaign.id, by="me")
    for _ in range(3):
        fleet.restarted().runner.turn()
        fleet.work()
    assert len(fleet.by_candidate()) == 1
    fleet.campaigns.resume(PROFILE, campaign.id, by="me")
    fleet.campaigns.runner.turn()
    fleet.campaigns.cancel(PROFILE, campaign.id, by="me")
    fleet.campaigns.runner.turn()
    fleet.work()
    assert len(fleet.by_candidate()) == 1


def test_going_back_serves_what_the_former_encoder_made(fleet: Fleet) -> None:
    """Nothing is extracted again, and what was served before the promotion is served again."""

    def served() -> dict[str, str]:
        speakers = [fleet.registry.speakers.read(SpeakerId.parse(one)) for one in ALL]
        for one in speakers:
            registry = fleet.registry
            assert settle(registry.speakers, registry.jobs, registry.profiles, one.id) is None
        statuses = [
            fleet.registry.profiles.status(one, one.document.default, PROFILES[0]) for one in speakers
        ]
        return {name: one.artifact.object for name, one in zip(ALL, statuses, strict=True) if one.artifact}

    before = served()
    campaign = fleet.campaigns.promote_when_complete(PROFILE, B, by="me").campaign
    assert fleet.finish(campaign).state == "promoted"
    assert not served().items() & before.items()
    fleet.records.promote(A, force=True)
    assert served() == before
    assert len(served()) == len(ALL)


def test_a_version_is_not_made_again_while_another_one_of_its_voice_is_under_way(fleet: Fleet) -> None:
    """Each turn looks at all versions of a voice that is under way, and one may be ready before another."""
    fleet.register("anna", "one", content=2)  # nobody has extracted it, so `default` stays
    fleet.world.queue.waiting.clear()
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    default = fleet.take()
    assert default is not None
    assert fleet.registry.publish(default)
    for _ in range(3):
        fleet.campaigns.runner.turn()
    fleet.finish(campaign)
    assert fleet.by_candidate() == sorted([*ALL, "anna/one"])


# -- Faults


def begun(fleet: Fleet, campaign: CampaignRecord) -> int:
    """Let the campaign go on for one turn, and return how many voices it has begun so far."""
    fleet.beat()
    fleet.campaigns.runner.turn()
    return fleet.campaigns.get(PROFILE, campaign.id).progress.begun


def test_the_rate_of_a_campaign_does_not_depend_on_the_clocks_of_apis(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API whose clock is an hour ahead would otherwise make all others begin nothing for an hour."""
    campaign = fleet.campaigns.start(PROFILE, B, by="me", rate=1).campaign
    with monkeypatch.context() as ahead:
        ahead.setattr(fleet.registry.speakers, "clock", OwnTime(fleet.world.clock.now() + 3600))
        assert begun(fleet, campaign) == 1
    assert begun(fleet, campaign) == 1
    fleet.world.pass_time(1)
    assert begun(fleet, campaign) == 2


def test_a_clock_of_redis_that_was_ahead_does_not_hold_a_campaign_back(fleet: Fleet) -> None:
    """After a failover, the clock of another machine counts."""
    server, time = fleet.world.server, fleet.world.server.now
    campaign = fleet.campaigns.start(PROFILE, B, by="me", rate=1).campaign
    server.now = lambda: time() + 3600
    assert begun(fleet, campaign) == 1
    server.now = time
    assert begun(fleet, campaign) == 1
    fleet.world.pass_time(1)
    assert begun(fleet, campaign) == 2


def test_a_voice_that_could_not_be_read_and_then_failed_keeps_its_campaign_from_promoting(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure that is seen only by a later walk, which counts no voice again, must not get lost."""
    campaign = fleet.campaigns.promote_when_complete(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    read = fleet.registry.speakers.read

    def unreadable(speaker_id: SpeakerId) -> Any:
        if str(speaker_id) == "bert/one":
            raise ObjectUnavailable("The disk cannot read this object.")
        return read(speaker_id)

    with monkeypatch.context() as broken:
        broken.setattr(fleet.registry.speakers, "read", unreadable)
        fleet.campaigns.runner.turn()
    fleet.finish(campaign, failing="bert/one")
    assert fleet.records.profiles.read_uncached(PROFILE).fingerprint == A


def test_a_voice_whose_artifacts_cannot_be_read_is_not_compared_and_stops_no_campaign(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad block of the disk concerns one voice, and the comparison is only a sample."""
    get = fleet.world.store.get

    def unreadable(key: str) -> bytes:
        if key.startswith("bert/d/"):
            raise ObjectUnavailable("The disk cannot read this object.")
        return get(key)

    monkeypatch.setattr(fleet.world.store, "get", unreadable)
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    assert fleet.finish(campaign).state == "complete"


def test_a_campaign_ends_although_a_voice_gets_new_versions_all_the_time(fleet: Fleet) -> None:
    """A tenant that uploads faster than workers extract must not keep a campaign from its end."""
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    for number, seen in enumerate(islice(fleet.turns(campaign), 40)):
        if not seen.open:
            break
        fleet.register("bert", "one", content=10 + number)
    assert not fleet.seen(campaign).open


@pytest.mark.parametrize(("failing", "counts"), [("", (6, 6, 0)), ("bert/one", (6, 5, 1))])
def test_a_voice_that_gets_a_version_during_a_campaign_is_counted_once(
    fleet: Fleet, failing: str, counts: tuple[int, int, int]
) -> None:
    """Operators compare the number of voices with that of their registry."""
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    fleet.work()
    fleet.ready("bert", "one", content=2)
    fleet.register("anna", "two", content=3)
    fleet.finish(campaign, failing=failing)
    progress = fleet.campaigns.get(PROFILE, campaign.id).progress
    assert fleet.by_candidate() == sorted([*ALL, "anna/two", "bert/one"])
    assert (progress.voices, progress.ready, progress.failed) == counts


def test_a_voice_that_is_registered_during_a_campaign_is_counted(fleet: Fleet) -> None:
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    fleet.work()
    fleet.ready("bert", "three")
    fleet.finish(campaign)
    progress = fleet.campaigns.get(PROFILE, campaign.id).progress
    assert (progress.voices, progress.ready) == (len(ALL) + 1, len(ALL) + 1)


def test_voices_that_are_registered_before_the_first_walk_reaches_them_are_counted(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The campaign seemed done, with no time left, while the new voices were under way."""
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    monkeypatch.setattr(preparation, "WINDOW", 2)
    next(fleet.turns(campaign))
    for number in range(3):
        fleet.ready("cleo", f"new-{number}")
    monkeypatch.setattr(preparation, "WINDOW", 64)
    fleet.campaigns.runner.turn()
    shown = fleet.campaigns.get(PROFILE, campaign.id).progress
    assert (shown.voices, shown.done + len(shown.under_way)) == (len(ALL) + 3, len(ALL) + 3)
    assert shown.coverage < 1


def test_a_namespace_cannot_cancel_the_job_of_a_campaign(fleet: Fleet) -> None:
    """The campaign counted the voice as failed, and its encoder was never promoted for anybody."""
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    registry, job_id = fleet.registry, next(iter(fleet.world.queue.waiting))
    namespace = SpeakerId.parse(fleet.world.queue.waiting[job_id]["speaker"]).namespace
    rooms = (registry.speakers, registry.jobs, registry.profiles, namespace, job_id)
    with pytest.raises(PermissionDenied, match=f"campaign '{campaign.id}'"):
        cancel(*rooms, by="key", is_operator=False)
    assert registry.jobs.record(namespace, job_id).state == "queued"
    assert cancel(*rooms, by="key", is_operator=True).state == "canceled"


def test_a_campaign_that_cannot_go_on_does_not_stop_the_others(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Campaigns of all profiles share one thread, and one that raises must not end each of its turns."""
    fleet.records.announce(C, PROFILES[1].name)
    fleet.records.workers.beat("w3", {PROFILES[1].name: C})
    broken = fleet.campaigns.start(PROFILES[1].name, C, by="me").campaign
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    prepare = fleet.campaigns.runner._prepare

    def raises_for_one(one: CampaignRecord, *options: Any) -> Any:
        if one.id == broken.id:
            raise EncoderUnknown("No worker has ever announced it.")
        return prepare(one, *options)

    monkeypatch.setattr(fleet.campaigns.runner, "_prepare", raises_for_one)
    assert fleet.finish(campaign).state == "complete"


def test_a_voice_that_a_later_walk_could_not_begin_keeps_its_campaign_from_promoting(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later walks count no voice again, but this one was not there during the first."""
    campaign = fleet.campaigns.promote_when_complete(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    fleet.ready("dora", "one")  # the candidate's worker also ends the first walk
    opened = fleet.registry.jobs.open

    def refused(speaker_id: SpeakerId, *options: Any, **said: Any) -> Any:
        if speaker_id.namespace == "dora":
            raise ValueError("There is no such job.")
        return opened(speaker_id, *options, **said)

    monkeypatch.setattr(fleet.registry.jobs, "open", refused)
    assert fleet.finish(campaign).state == "complete"
    assert fleet.records.profiles.read_uncached(PROFILE).fingerprint == A


def test_a_cancel_that_loses_its_lock_still_takes_the_jobs_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow bucket may outlast the lock. A turn of another process then finds the campaign running."""
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    operator, other, swap = fleet.campaigns, fleet.restarted(), fleet.world.store.swap

    def slow(key: str, data: bytes, *, etag: str | None) -> str:
        if key == profile_key(PROFILE):
            monkeypatch.setattr(fleet.world.store, "swap", swap)
            for lock in [one for one in fleet.world.server.data if one.endswith(":lock:campaigns")]:
                del fleet.world.server.data[lock]
            other.runner.turn()
        return swap(key, data, etag=etag)

    monkeypatch.setattr(fleet.world.store, "swap", slow)
    operator.cancel(PROFILE, campaign.id, by="me")
    fleet.work()
    assert fleet.by_candidate() == []


def test_a_campaign_waits_until_all_voices_are_known_again_after_a_loss_of_redis(fleet: Fleet) -> None:
    """With the few voices that the view holds at first, the campaign would say that it is nearly done."""
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    fleet.work()
    fleet.world.lose_redis()
    fleet.beat()
    fleet.registry.generation.check()
    fleet.registry.speakers.refresh(SpeakerId.parse("anna/one"))
    for _ in range(2):
        fleet.campaigns.runner.turn()
    shown = fleet.campaigns.get(PROFILE, campaign.id)
    assert (shown.progress.voices, shown.progress.coverage) == (0, 0.0)
    assert shown.reason == NOT_COUNTED
    fleet.registry.rebuild()
    assert fleet.finish(campaign).state == "complete"
    assert fleet.campaigns.get(PROFILE, campaign.id).progress.voices == len(ALL)
    assert fleet.by_candidate() == ALL


class Killed(BaseException):
    """Ends the code of a process where a test wants it to end."""


def cancel_and_be_killed(fleet: Fleet, campaign: CampaignRecord) -> None:
    """Cancel a campaign in a process that is killed between the commit and what follows it."""

    def killed(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(preparation.Preparation, "withdraw", killed)
        with pytest.raises(Killed):
            fleet.campaigns.cancel(PROFILE, campaign.id, by="me")


def test_a_cancel_that_is_killed_after_its_commit_has_its_jobs_taken_back_by_the_next_turn(
    fleet: Fleet,
) -> None:
    """Workers of a candidate must not go on with voices of a campaign that nobody wants any more."""
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    assert len(fleet.world.queue.waiting) == len(ALL)
    cancel_and_be_killed(fleet, campaign)
    assert fleet.seen(campaign).state == "canceled"
    fleet.restarted().runner.turn()
    assert list(fleet.world.queue.waiting) == []
    assert fleet.campaigns._kept.ids() == set()
    fleet.work()
    assert fleet.by_candidate() == []
    assert not fleet.campaigns.runner.turn()


def test_a_campaign_takes_over_the_jobs_of_a_killed_cancel_for_its_encoder(
    fleet: Fleet,
) -> None:
    """What is taken back for the canceled campaign is begun again by the new one, each voice once."""
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    cancel_and_be_killed(fleet, campaign)
    second = fleet.restarted().start(PROFILE, B, by="me").campaign
    assert fleet.finish(second).state == "complete"
    assert fleet.by_candidate() == ALL


def test_jobs_of_a_killed_cancel_stay_if_their_encoder_was_promoted(
    fleet: Fleet,
) -> None:
    """After the promotion, every voice needs what those jobs make."""
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    cancel_and_be_killed(fleet, campaign)
    fleet.records.promote(B)
    fleet.restarted().runner.turn()
    assert len(fleet.world.queue.waiting) == len(ALL)
    assert fleet.campaigns._kept.ids() == set()


def test_a_turn_asks_once_which_progress_is_kept(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn comes every second in every process, as long as there are campaigns that are over."""
    asked, ids = [], KeptProgress.ids
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    cancel_and_be_killed(fleet, campaign)
    monkeypatch.setattr(KeptProgress, "ids", lambda kept: asked.append(kept) or ids(kept))
    fleet.restarted().runner.turn()
    assert len(asked) == 1


# -- Voices that failed


def oom() -> ExtractorOutOfMemory:
    return ExtractorOutOfMemory("the device has too little memory")


def test_a_new_campaign_tries_voices_that_failed_for_a_moment_once_more(fleet: Fleet) -> None:
    """A worker that was short of memory must not keep an encoder from its promotion for ever."""
    first = fleet.campaigns.promote_when_complete(PROFILE, B, by="me").campaign
    assert fleet.finish(first, failing="bert/one", why=oom()).state == "complete"
    tries = fleet.by_candidate().count("bert/one")
    second = fleet.campaigns.promote_when_complete(PROFILE, B, by="me").campaign
    ended = fleet.finish(second)
    assert ended.state == "promoted"
    assert fleet.by_candidate().count("bert/one") == tries + 1
    assert fleet.campaigns.get(PROFILE, second.id).progress.failed == 0


def test_a_voice_that_fails_again_is_not_tried_a_third_time_by_its_campaign(fleet: Fleet) -> None:
    """The second campaign ends, although whatever it forgives fails once more."""
    first = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.finish(first, failing="bert/one", why=oom())
    tries = fleet.by_candidate().count("bert/one")
    second = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.finish(second, failing="bert/one", why=oom())
    progress = fleet.campaigns.get(PROFILE, second.id).progress
    assert (progress.failed, progress.ready, dict(progress.forgiven)) == (1, len(ALL) - 1, {})
    assert fleet.by_candidate().count("bert/one") == 2 * tries


def test_a_lost_job_of_a_voice_that_is_tried_once_more_is_opened_again(fleet: Fleet) -> None:
    """The former failure is still in the document, and must not be taken for that of the lost job."""
    first = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.finish(first, failing="bert/one", why=oom())
    second = fleet.campaigns.start(PROFILE, B, by="me").campaign
    fleet.campaigns.runner.turn()
    speaker = fleet.registry.speakers.read(SpeakerId.parse("bert/one"))
    [job] = speaker.open_jobs
    fleet.world.queue.waiting.clear()
    fleet.registry.jobs.end(speaker.id, job, "superseded")
    assert fleet.finish(second).state == "complete"
    assert fleet.campaigns.get(PROFILE, second.id).progress.ready == len(ALL)


def test_a_campaign_names_the_voices_that_failed_and_promotes_all_the_same_if_forced(fleet: Fleet) -> None:
    """An operator sees whom a promotion leaves behind, and decides."""
    first = fleet.campaigns.promote_when_complete(PROFILE, B, by="me").campaign
    fleet.finish(first, failing="bert/one")
    shown = fleet.campaigns.get(PROFILE, first.id)
    [failed] = shown.progress.named
    assert (failed.namespace, failed.voice, failed.version) == ("bert", "one", 1)
    assert (failed.code, failed.message, failed.retryable) == ("invalid_audio", "no", False)
    assert str(shown.reason).startswith("1 voice could not be prepared (bert/one)")
    second = fleet.campaigns.promote_when_complete(PROFILE, B, by="me", force=True).campaign
    assert fleet.finish(second).state == "promoted"
    assert fleet.records.profiles.read_uncached(PROFILE).fingerprint == B
    assert fleet.by_candidate().count("bert/one") == 1


def erase_voice(fleet: Fleet, namespace: str, name: str) -> None:
    """Delete a voice, and let housekeeping erase it."""
    speakers, voice = fleet.registry.speakers, parse_speaker_name(name)
    delete(speakers, fleet.registry.jobs, namespace, voice, by="key")
    fleet.world.pass_time(60)
    fleet.beat()
    erase(
        speakers,
        fleet.registry.blobs,
        SpeakerId.of(namespace, voice),
        grace=timedelta(seconds=1),
        forget_voice=fleet.campaigns.forget_voice,
    )


def names_of_voices(fleet: Fleet) -> str:
    """Return what campaigns keep in documents of profiles and in Redis."""
    documents = [body for key, (body, _) in fleet.world.store.objects.items() if key == profile_key(PROFILE)]
    progress = [value for key, value in fleet.world.server.data.items() if key.endswith(":campaigns")]
    return f"{documents} {progress}"


@pytest.mark.parametrize("is_over", [False, True])
def test_campaigns_forget_the_name_of_an_erased_voice(fleet: Fleet, is_over: bool) -> None:
    """The document of a profile kept the names of erased voices as long as its last fifty campaigns."""
    fleet.ready("cleo", "wren")
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    if is_over:
        fleet.finish(campaign, failing="cleo/wren")
    else:
        fleet.campaigns.runner.turn()
        fleet.work(failing="cleo/wren")
        fleet.campaigns.runner.turn()
    erase_voice(fleet, "bert", "two")
    assert "wren" in names_of_voices(fleet)
    erase_voice(fleet, "cleo", "wren")
    assert "wren" not in names_of_voices(fleet)
    assert fleet.finish(campaign).state == "complete"
    assert "wren" not in names_of_voices(fleet)
    shown = fleet.campaigns.get(PROFILE, campaign.id).progress
    assert (shown.failed, shown.named) == (1, ())


@pytest.mark.parametrize("is_canceled", [False, True])
def test_a_campaign_that_is_over_keeps_no_names_of_voices_that_did_not_fail(
    fleet: Fleet, is_canceled: bool
) -> None:
    """The last voice of the walk stayed in the document of the profile."""
    fleet.ready("cleo", "wren")
    campaign = fleet.campaigns.start(PROFILE, B, by="me").campaign
    if is_canceled:
        fleet.campaigns.runner.turn()
        assert "wren" in names_of_voices(fleet)
        fleet.campaigns.cancel(PROFILE, campaign.id, by="me")
    else:
        fleet.finish(campaign)
    assert "wren" not in names_of_voices(fleet)
