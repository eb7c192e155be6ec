"""Tests of campaigns over HTTP, with a candidate's worker that the test itself advances."""

import pytest

from services.registry_api.campaigns import preparation
from services.shared.view.stamp import STAMP
from speaker_registry import RegistryClient
from speaker_registry.cli import campaigns, main
from speaker_registry.errors import (
    AudioTooShort,
    CampaignEnded,
    CampaignNotFound,
    CampaignOpen,
    ExtractorFailed,
    InvalidRequest,
    SpeakerRegistryError,
)
from speaker_registry.following import Following
from tests.encoders import come_with
from tests.integration.api.conftest import Start
from tests.integration.api.registry import EMBEDDING, PROFILE, Registry
from tests.integration.api.worker import FINGERPRINT, StandIn

NEWER, UNKNOWN, OF_ANOTHER = ("sha256:" + digit * 64 for digit in "234")
OTHER_PROFILE = "qwen3-tts-1.7b"
CAMPAIGNS = f"/v1/profiles/{PROFILE}/campaigns"
ALL = ("ada", "bob", "cyd")


@pytest.fixture
def registry(start: Start) -> Registry:
    """A registry of three voices, and a candidate that has one live worker."""
    registry = start(profiles=(PROFILE,))
    profiles, workers = registry.opened.profile_records, registry.opened.workers
    come_with(profiles, PROFILE, NEWER, {"dtype": "x"})
    come_with(profiles, OTHER_PROFILE, OF_ANOTHER)
    workers.beat("w1", {PROFILE: FINGERPRINT})
    workers.beat("w2", {PROFILE: NEWER})
    for name in ALL:
        registry.ready(name)
    return registry


@pytest.fixture
def candidate(registry: Registry) -> StandIn:
    """The worker of the candidate."""
    worker = StandIn(registry.opened)
    worker.fingerprint = NEWER
    return worker


def start_one(registry: Registry, **said: object) -> dict:
    answer = registry.client.post(CAMPAIGNS, json={"fingerprint": NEWER, **said})
    assert answer.status_code == 201, answer.text
    return answer.json()


def seen(registry: Registry, campaign: dict) -> dict:
    return registry.client.get(f"{CAMPAIGNS}/{campaign['id']}").json()


def turn(registry: Registry) -> None:
    registry.campaigns.runner.turn()


def finish(registry: Registry, candidate: StandIn, campaign: dict) -> dict:
    """Let the campaign end, of which each turn does something, and return it."""
    for _ in range(20):
        turn(registry)
        candidate.finish_all()
        if seen(registry, campaign)["state"] not in {"running", "paused"}:
            return seen(registry, campaign)
    raise AssertionError(f"the campaign does not end: {seen(registry, campaign)}")


def files(registry: Registry) -> dict[str, tuple[int, bytes]]:
    answers = {name: registry.file(name) for name in ALL}
    return {name: (answer.status_code, answer.content) for name, answer in answers.items()}


def promote(registry: Registry, fingerprint: str, **said: object) -> tuple[int, str | None]:
    answer = registry.client.post(
        f"/v1/profiles/{PROFILE}/promote", json={"fingerprint": fingerprint, **said}
    )
    return answer.status_code, answer.json().get("error", {}).get("code")


def shown(registry: Registry) -> dict:
    return next(one for one in registry.client.get("/v1/profiles").json()["data"] if one["id"] == PROFILE)


def test_a_campaign_prepares_every_voice_and_changes_nothing_that_is_served(
    registry: Registry, candidate: StandIn
):
    """A voice must sound the same until an operator promotes the new encoder."""
    before = files(registry)
    campaign = start_one(registry)
    ended = finish(registry, candidate, campaign)
    assert (ended["state"], ended["coverage"]) == ("complete", 1.0)
    assert ended["progress"] == {"voices": 3, "ready": 3, "failed": 0, "skipped": 0, "under_way": 0}
    assert files(registry) == before
    assert len(candidate.taken) == 3
    assert shown(registry)["candidates"][0]["coverage"] == 1.0


def test_what_a_campaign_prepared_is_served_at_once_and_the_way_back_costs_nothing(
    registry: Registry, candidate: StandIn
):
    """No voice is extracted again: neither after the promotion, nor after going back."""
    before = files(registry)
    finish(registry, candidate, start_one(registry))
    assert promote(registry, NEWER)[0] == 200
    for name in ALL:
        registry.repair(name)
        assert registry.file(name).headers["X-Artifact-Fingerprint"] == NEWER
    assert (candidate.take_all(), registry.worker.take_all()) == ([], [])
    assert promote(registry, FINGERPRINT)[0] == 200
    for name in ALL:
        registry.repair(name)
    assert files(registry) == before
    assert registry.worker.take_all() == []


def test_engines_that_follow_the_registry_get_what_a_campaign_prepared_once_it_is_promoted(
    registry: Registry, candidate: StandIn
):
    """A promotion changes the bytes of a version and not its number. Engines hold what they have read, so
    they must find that of every voice, and not too early.
    """
    with RegistryClient(registry.url, retries=0) as engine:
        following = Following(engine, PROFILE)
        before = fetched(engine, following)
        assert [*before] == [*ALL]
        finish(registry, candidate, start_one(registry))
        assert fetched(engine, following) == before
        for fingerprint in (NEWER, FINGERPRINT):
            assert promote(registry, fingerprint)[0] == 200
            now = fetched(engine, following)
            assert [*now] == [*ALL]
            assert {made_by for made_by, _ in now.values()} == {fingerprint}
        assert now == before


def fetched(engine: RegistryClient, following: Following) -> dict[str, tuple[str, str]]:
    """Look at the registry and fetch all voices as engines do. Returns the encoder and the digest of each,
    which the manifest told.
    """
    following.look()
    artifacts = {one: engine.fetch(one.reference, PROFILE) for one in following.voices.values()}
    assert [one.digest for one in artifacts] == [artifact.digest for artifact in artifacts.values()]
    return {
        one.voice: (artifact.manifest.fingerprint, artifact.digest) for one, artifact in artifacts.items()
    }


def test_a_voice_without_a_clip_is_skipped(registry: Registry, candidate: StandIn):
    """Nothing can be extracted from a given embedding, so it must not keep a campaign from its end."""
    registry.post_voice("eve", clip=None, speaker_embedding=EMBEDDING)
    ended = finish(registry, candidate, start_one(registry))
    assert ended["coverage"] == 1.0
    assert ended["progress"]["failed"] == 0


def begin_with_one(registry: Registry, candidate: StandIn, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Start a campaign whose first voice is ready, and of whose other voices nothing was begun."""
    campaign = start_one(registry)
    with monkeypatch.context() as narrow:
        narrow.setattr(preparation, "WINDOW", 1)
        turn(registry)
    [first] = candidate.take_all()
    candidate.publish(first)
    return campaign


def test_a_canceled_campaign_takes_its_jobs_back_and_keeps_what_was_made(
    registry: Registry, candidate: StandIn, monkeypatch: pytest.MonkeyPatch
):
    """The next campaign for the encoder extracts only the rest."""
    campaign = begin_with_one(registry, candidate, monkeypatch)
    turn(registry)
    queue = f"rq:queue:prepare.{PROFILE}.{'2' * 16}"
    assert registry.redis.llen(queue) == 3
    assert registry.client.post(f"{CAMPAIGNS}/{campaign['id']}/cancel").json()["state"] == "canceled"
    assert registry.client.post(f"{CAMPAIGNS}/{campaign['id']}/resume").status_code == 409
    assert candidate.take_all() == []
    assert registry.redis.llen(queue) == 1, "the stand-in takes no job from the queue, so the first stays"
    second = start_one(registry)
    ended = finish(registry, candidate, second)
    assert (ended["progress"]["ready"], len(candidate.taken)) == (3, 3)
    listed = registry.client.get(CAMPAIGNS).json()["data"]
    assert [one["state"] for one in listed] == ["complete", "canceled"]


def test_the_sample_tells_the_distance_of_old_and_new_artifacts(registry: Registry, candidate: StandIn):
    """An operator sees what a promotion would change before it changes it."""
    campaign = start_one(registry, sample=2)
    turn(registry)
    for attempt in candidate.take_all():
        candidate.publish(attempt)
    turn(registry)
    sample = seen(registry, campaign)["sample"]
    assert (sample["wanted"], sample["compared"]) == (2, 2)
    assert {name: one["measure"] for name, one in sample["tensors"].items()} == {
        "ref_code": "equal",
        "speaker_embedding": "cosine",
    }
    assert all(-1 <= one["lowest"] <= one["mean"] < 0.5 for one in sample["tensors"].values())


def test_an_encoder_is_promoted_by_itself_when_every_voice_is_covered(registry: Registry, candidate: StandIn):
    """`complete` starts the campaign if there is none, and changes nothing before its end."""
    before = files(registry)
    assert promote(registry, NEWER, when="complete")[0] == 200
    [campaign] = registry.client.get(CAMPAIGNS).json()["data"]
    assert (campaign["promotes"], files(registry)) == (True, before)
    ended = finish(registry, candidate, campaign)
    assert (ended["state"], shown(registry)["fingerprint"]) == ("promoted", NEWER)


def test_the_voices_that_failed_are_named_and_a_forced_promotion_leaves_them_behind(
    registry: Registry, candidate: StandIn, capsys: pytest.CaptureFixture[str]
):
    """An operator sees which voices keep an encoder from its promotion, and why, and decides."""
    assert promote(registry, NEWER, when="complete")[0] == 200
    [campaign] = registry.client.get(CAMPAIGNS).json()["data"]
    assert campaign["failures"] == []
    ended = finish_failing(registry, candidate, campaign, AudioTooShort("the clip is too short"))
    failure = {"code": "audio_too_short", "message": "the clip is too short", "retryable": False}
    assert ended["failures"] == [{"namespace": "default", "voice": "bob", "version": 1, **failure}]
    with RegistryClient(registry.url, retries=0) as operator:
        assert [one.voice for one in operator.campaign(PROFILE, campaign["id"]).failures] == ["bob"]
    assert main(["--url", registry.url, "campaigns", "show", PROFILE, campaign["id"]]) == 0
    assert "failed: default/bob@1: audio_too_short: the clip is too short" in capsys.readouterr().out
    before = files(registry)["bob"]
    said = ["profiles", "promote", PROFILE, NEWER, "--when", "complete", "--force", "--yes"]
    assert main(["--url", registry.url, *said]) == 0
    forced = registry.client.get(CAMPAIGNS).json()["data"][0]
    again = finish_failing(registry, candidate, forced, AudioTooShort("the clip is too short"))
    assert (again["state"], shown(registry)["fingerprint"]) == ("promoted", NEWER)
    assert files(registry)["bob"] == before


def finish_failing(
    registry: Registry, candidate: StandIn, campaign: dict, error: SpeakerRegistryError | None = None
) -> dict:
    """Let the campaign end, while every extraction of `bob` fails."""
    for _ in range(20):
        candidate.fail_all("bob", error or ExtractorFailed("no"))
        candidate.finish_all("ada")
        candidate.finish_all("cyd")
        turn(registry)
        if seen(registry, campaign)["state"] not in {"running", "paused"}:
            break
    return seen(registry, campaign)


def test_a_campaign_waits_for_a_worker_of_its_encoder_and_says_so(registry: Registry, candidate: StandIn):
    """Jobs that nobody takes must not pile up."""
    campaign = start_one(registry)
    registry.opened.workers.leave("w2", {PROFILE: NEWER})
    turn(registry)
    assert seen(registry, campaign)["reason"] == preparation.NO_WORKER
    assert candidate.take_all() == []
    registry.opened.workers.beat("w2", {PROFILE: NEWER})
    assert finish(registry, candidate, campaign)["state"] == "complete"


def test_a_candidate_is_shown_also_when_its_workers_have_left_its_campaign(
    registry: Registry, candidate: StandIn
):
    """An operator has to see what the campaign waits for, or what there is to promote."""
    registry.opened.workers.beat("w3", {PROFILE: UNKNOWN})
    come_with(registry.opened.profile_records, PROFILE, UNKNOWN)
    finish(registry, candidate, start_one(registry))
    registry.opened.workers.leave("w2", {PROFILE: NEWER})
    registry.opened.workers.leave("w3", {PROFILE: UNKNOWN})
    [left] = shown(registry)["candidates"]
    assert (left["fingerprint"], left["workers"], left["coverage"]) == (NEWER, 0, 1.0)
    assert left["differs"].keys() >= {"dtype"}
    assert promote(registry, NEWER, force=True) == (200, None)
    assert [one["fingerprint"] for one in shown(registry)["candidates"]] == [FINGERPRINT]


def test_a_job_of_a_campaign_waits_for_workers_of_its_encoder_and_for_no_others(registry: Registry):
    """An operator who looks at the job must not be sent to a worker that would not take it."""
    registry.forget_workers_at_once()
    start_one(registry)
    turn(registry)

    def reasons() -> set[str | None]:
        found = registry.client.get("/v1/jobs", params={"state": "queued"}).json()["data"]
        assert len(found) == len(ALL)
        return {one["reason"] for one in found}

    assert reasons() == {None}
    registry.opened.workers.leave("w1", {PROFILE: FINGERPRINT})
    assert reasons() == {None}, "only the worker of the current encoder is gone"
    registry.opened.workers.beat("w1", {PROFILE: FINGERPRINT})
    registry.opened.workers.leave("w2", {PROFILE: NEWER})
    assert reasons() == {preparation.NO_WORKER}


def test_only_so_many_voices_are_under_way_at_once(
    registry: Registry, candidate: StandIn, monkeypatch: pytest.MonkeyPatch
):
    """Redis holds a bounded number of jobs, however many voices there are."""
    monkeypatch.setattr(preparation, "WINDOW", 2)
    campaign = start_one(registry)
    for _ in range(3):
        turn(registry)
    assert seen(registry, campaign)["progress"]["under_way"] == 2
    assert finish(registry, candidate, campaign)["progress"]["ready"] == 3


def test_a_turn_lists_the_namespaces_once(
    registry: Registry, candidate: StandIn, monkeypatch: pytest.MonkeyPatch
):
    """A registry may have thousands of namespaces, and their list is a request to the bucket."""
    for number in range(5):
        (registry.folder / f"team-{number}").mkdir()
    listed: list[str] = []
    folders = registry.opened.store.folders
    monkeypatch.setattr(
        registry.opened.store, "folders", lambda prefix: listed.append(prefix) or folders(prefix)
    )
    campaign = start_one(registry)
    turn(registry)
    assert (listed, seen(registry, campaign)["progress"]["under_way"]) == ([""], 3)


def signals(registry: Registry) -> dict[tuple[str, ...], float]:
    """Return the samples of campaigns by name and values of the labels."""
    return {
        (sample.name.removeprefix("registry_campaign_"), *sample.labels.values()): sample.value
        for family in registry.campaigns.signals()
        for sample in family.samples
    }


def test_metrics_show_the_newest_campaign_of_a_profile(
    registry: Registry, candidate: StandIn, monkeypatch: pytest.MonkeyPatch
):
    """An operator sees progress, failures and a campaign that waits or was paused without asking the API."""
    assert signals(registry) == {}
    campaign = begin_with_one(registry, candidate, monkeypatch)
    turn(registry)
    voices = {"ready": 1, "failed": 0, "skipped": 0, "under_way": 2, "left": 0}
    rate = ("voices_per_second", PROFILE)
    shown = {("voices", PROFILE, state): count for state, count in voices.items()} | {rate: 0}
    assert signals(registry) == shown | {("state", PROFILE, "running"): 1}
    registry.opened.workers.leave("w2", {PROFILE: NEWER})
    turn(registry)
    assert signals(registry)["state", PROFILE, "waiting"] == 1
    registry.opened.workers.beat("w2", {PROFILE: NEWER})
    registry.client.post(f"{CAMPAIGNS}/{campaign['id']}/pause")
    assert signals(registry)["state", PROFILE, "paused"] == 1
    registry.client.post(f"{CAMPAIGNS}/{campaign['id']}/resume")
    ended = finish_failing(registry, candidate, campaign)
    assert ended["progress"]["failed"] == 1
    assert signals(registry)["voices", PROFILE, "failed"] == 1
    assert signals(registry)["state", PROFILE, "complete"] == 1
    start_one(registry)
    assert signals(registry)["state", PROFILE, "running"] == 1
    assert signals(registry)["voices", PROFILE, "failed"] == 0


def test_metrics_of_campaigns_are_left_out_while_the_index_cannot_be_used(registry: Registry):
    """The other metrics of the scrape must stay: they say what is wrong with the view."""
    start_one(registry)
    assert signals(registry)["state", PROFILE, "running"] == 1
    registry.redis.set(STAMP, "some run/another bucket/3")
    assert signals(registry) == {}


@pytest.mark.parametrize(
    ("said", "status", "code", "message"),
    [
        ({"fingerprint": FINGERPRINT}, 409, "encoder_current", "already the current fingerprint"),
        ({"fingerprint": UNKNOWN}, 404, "encoder_unknown", f"No worker has ever announced {UNKNOWN}"),
        ({"fingerprint": OF_ANOTHER}, 404, "encoder_unknown", f"fingerprint of profile '{OTHER_PROFILE}'"),
        ({"fingerprint": "sha256:2"}, 400, "invalid_request", "sha256:2"),
        ({"fingerprint": NEWER, "sample": 0}, 400, "invalid_request", "'sample' is 0"),
        ({"fingerprint": NEWER, "sample": 201}, 400, "invalid_request", "'sample' is 201"),
        ({"fingerprint": NEWER, "sample": True}, 400, "invalid_request", "sample"),
        ({"fingerprint": NEWER, "rate": 0}, 400, "invalid_request", "'rate' is 0"),
        ({"fingerprint": NEWER, "rate": 1001}, 400, "invalid_request", "'rate' is 1001"),
        ({"fingerprint": NEWER, "speed": 1}, 400, "invalid_request", "speed"),
        ({}, 400, "invalid_request", "fingerprint"),
    ],
)
def test_a_campaign_that_makes_no_sense_is_refused_and_changes_nothing(
    registry: Registry, said: dict, status: int, code: str, message: str
):
    """Each refusal says what was wrong, with the value."""
    answer = registry.client.post(CAMPAIGNS, json=said)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert message in answer.json()["error"]["message"]
    assert registry.client.get(CAMPAIGNS).json()["data"] == []


def test_a_campaign_for_a_candidate_without_a_worker_is_refused(registry: Registry):
    """It would do nothing, and nobody might notice."""
    registry.opened.workers.leave("w2", {PROFILE: NEWER})
    answer = registry.client.post(CAMPAIGNS, json={"fingerprint": NEWER})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "encoder_unserved")
    assert promote(registry, NEWER, when="complete", force=True) == (409, "encoder_unserved")
    assert registry.client.get(CAMPAIGNS).json()["data"] == []


def test_a_profile_has_one_campaign_at_a_time(registry: Registry):
    """Two would compete for the same workers, and nobody could tell which one promotes."""
    campaign = start_one(registry)
    second = registry.client.post(CAMPAIGNS, json={"fingerprint": NEWER})
    assert (second.status_code, second.json()["error"]["code"]) == (409, "campaign_open")
    assert campaign["id"] in second.json()["error"]["message"]
    come_with(registry.opened.profile_records, PROFILE, UNKNOWN)
    registry.opened.workers.beat("w3", {PROFILE: UNKNOWN})
    assert promote(registry, UNKNOWN, when="complete") == (409, "campaign_open")
    assert len(registry.client.get(CAMPAIGNS).json()["data"]) == 1


@pytest.mark.parametrize(
    ("said", "status", "code", "message"),
    [
        ({"fingerprint": FINGERPRINT}, 409, "encoder_current", "already the current fingerprint"),
        ({"fingerprint": UNKNOWN}, 404, "encoder_unknown", f"No worker has ever announced {UNKNOWN}"),
        ({"fingerprint": OF_ANOTHER}, 404, "encoder_unknown", f"fingerprint of profile '{OTHER_PROFILE}'"),
        ({"fingerprint": NEWER, "when": "later"}, 400, "invalid_request", "later"),
        ({"fingerprint": NEWER, "force": "yes"}, 400, "invalid_request", "force"),
    ],
)
def test_a_promotion_when_complete_that_makes_no_sense_starts_no_campaign(
    registry: Registry, said: dict, status: int, code: str, message: str
):
    """A campaign costs hours of workers, so nothing may start one by mistake."""
    before = shown(registry)
    answer = registry.client.post(f"/v1/profiles/{PROFILE}/promote", json={"when": "complete", **said})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert message in answer.json()["error"]["message"]
    assert registry.client.get(CAMPAIGNS).json()["data"] == []
    assert shown(registry) == before


def test_an_unknown_campaign_is_not_found(registry: Registry):
    """The answer names the campaign and says where the others are listed."""
    for method, path in (("GET", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/cancel")):
        answer = registry.client.request(method, f"{CAMPAIGNS}/nothing{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "campaign_not_found")
        assert "'nothing'" in answer.json()["error"]["message"]
    assert registry.client.get("/v1/profiles/nothing/campaigns").status_code == 404


def test_a_change_of_a_campaign_that_is_over_is_refused_and_changes_nothing(
    registry: Registry, candidate: StandIn
):
    """What has ended stays as it ended, and the answer says how that was."""
    ended = finish(registry, candidate, start_one(registry))
    for change in ("pause", "resume", "cancel"):
        answer = registry.client.post(f"{CAMPAIGNS}/{ended['id']}/{change}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "campaign_ended")
        assert f"'{ended['id']}' is complete" in answer.json()["error"]["message"]
        assert answer.headers["x-should-retry"] == "false"
    assert seen(registry, ended) == ended


def test_a_change_that_was_made_already_changes_nothing(registry: Registry):
    """A client that repeats a request whose answer was lost gets the same answer."""
    campaign = start_one(registry)
    assert registry.client.post(f"{CAMPAIGNS}/{campaign['id']}/resume").json() == campaign
    canceled = registry.client.post(f"{CAMPAIGNS}/{campaign['id']}/cancel").json()
    again = registry.client.post(f"{CAMPAIGNS}/{campaign['id']}/cancel")
    assert (again.status_code, again.json()) == (200, canceled)
    assert canceled["state"] == "canceled"
    for change in ("pause", "resume"):
        answer = registry.client.post(f"{CAMPAIGNS}/{campaign['id']}/{change}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "campaign_ended")
    assert seen(registry, campaign) == canceled


def test_a_promotion_at_the_end_waits_for_a_worker_of_its_encoder(registry: Registry, candidate: StandIn):
    """The worker may leave after it has made the last artifact. Then nothing new could be extracted."""
    assert promote(registry, NEWER, when="complete")[0] == 200
    [campaign] = registry.client.get(CAMPAIGNS).json()["data"]
    turn(registry)
    candidate.finish_all()
    registry.opened.workers.leave("w2", {PROFILE: NEWER})
    for _ in range(3):
        turn(registry)
    waiting = seen(registry, campaign)
    assert (waiting["state"], waiting["reason"]) == ("running", preparation.NO_WORKER)
    assert shown(registry)["fingerprint"] == FINGERPRINT
    registry.opened.workers.beat("w2", {PROFILE: NEWER})
    assert finish(registry, candidate, campaign)["state"] == "promoted"


def test_the_sdk_starts_and_changes_campaigns(registry: Registry, candidate: StandIn):
    """An operator's script can do what the routes can, and gets an error of its own for each refusal."""
    with RegistryClient(registry.url, retries=0) as operator:
        started = operator.start_campaign(PROFILE, NEWER, sample=1, rate=1000)
        assert (started.state, started.rate, started.sample.wanted) == ("running", 1000, 1)
        with pytest.raises(CampaignOpen):
            operator.start_campaign(PROFILE, NEWER)
        with pytest.raises(InvalidRequest, match="'sample' is 0"):
            operator.start_campaign(PROFILE, NEWER, sample=0)
        with pytest.raises(CampaignNotFound):
            operator.campaign(PROFILE, "nothing")
        assert operator.pause_campaign(PROFILE, started.id).state == "paused"
        assert operator.resume_campaign(PROFILE, started.id).state == "running"
        assert operator.cancel_campaign(PROFILE, started.id).over
        with pytest.raises(CampaignEnded):
            operator.resume_campaign(PROFILE, started.id)
        operator.promote_encoder(PROFILE, NEWER, when="complete")
        states = [one.state for one in operator.campaigns(PROFILE)]
        assert states == ["running", "canceled"]
        assert [one.promotes for one in operator.campaigns(PROFILE, limit=1)] == [True]


def test_the_command_line_starts_shows_and_waits_for_a_campaign(
    registry: Registry,
    candidate: StandIn,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    """An operator needs no other tool to prepare a promotion."""

    def run(*words: str) -> tuple[int, str]:
        status = main(["--url", registry.url, "campaigns", *words])
        return status, "".join(capsys.readouterr())

    def go_on(_: float) -> None:
        turn(registry)
        candidate.finish_all()

    monkeypatch.setattr(campaigns.time, "sleep", go_on)
    status, text = run("start", PROFILE, NEWER, "--sample", "1", "--wait")
    assert (status, "complete" in text, "100.0 %" in text) == (0, True, True)
    assert "share of equal codes" in text
    assert run("start", PROFILE, NEWER, "--rate", "0.01")[0] == 0
    second = registry.client.get(CAMPAIGNS).json()["first_id"]
    assert run("pause", PROFILE, second)[0] == 0
    status, text = run("wait", PROFILE, second, "--timeout", "0")
    assert (status, "it continues without this command" in text) == (8, True)
    assert run("resume", PROFILE, second)[0] == 0
    assert "canceled" in run("cancel", PROFILE, second)[1]
    assert run("wait", PROFILE, second)[0] == 6
    assert second in run("list", PROFILE)[1]
    assert run("start", PROFILE, NEWER, "--sample", "0")[0] == 2
    assert run("start", PROFILE, NEWER, "--rate", "0")[0] == 2
    assert run("show", PROFILE, "nothing")[0] == 5
