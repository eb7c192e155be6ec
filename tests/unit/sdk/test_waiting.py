"""Waiting until a version is ready: it ends when it should, with the reason."""

import httpx
import pytest

from speaker_registry import errors
from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_registry import ECAPA, QWEN, FakeRegistry, FakeTime


@pytest.fixture
def registry() -> FakeRegistry:
    """Two required profiles."""
    return FakeRegistry((ECAPA, QWEN))


def test_waiting_ends_when_all_required_profiles_are_ready(connect: Connect, registry: FakeRegistry):
    """One ready profile of two is not a voice that every engine can use."""
    version = registry.add_version("alice", "pending")
    registry.news.append(lambda: registry.make_ready("alice", version, QWEN))
    registry.news.append(lambda: registry.make_ready("alice", version, ECAPA))
    ready = connect().wait_ready("alice")
    assert (ready.reference, ready.state) == ("alice@1", "ready")
    assert {status.state for status in ready.artifacts} == {"ready"}
    assert not registry.news


def test_waiting_for_one_profile_does_not_wait_for_others(connect: Connect, registry: FakeRegistry):
    """An engine needs its own."""
    version = registry.add_version("alice", "pending")
    registry.news.append(lambda: registry.make_ready("alice", version, QWEN))
    ready = connect().wait_ready("alice@1", QWEN)
    assert [status.profile for status in ready.artifacts] == [QWEN]
    assert version.states[ECAPA] == "pending"


def test_a_bare_name_means_the_default_version(connect: Connect, registry: FakeRegistry):
    """What `wait_ready` says is ready is what `fetch` gets by the same name."""
    registry.add_version("alice")
    registry.add_version("alice", "pending")
    registry.aliases["alice"]["default"] = 1
    assert connect().wait_ready("alice").version == 1


def test_the_wait_for_a_registration_is_about_its_version(connect: Connect, registry: FakeRegistry):
    """The old version is ready, and would end a wait for the bare name at once."""
    registry.add_version("alice")
    client = connect()
    registered = client.register("alice", b"a clip", consent="c")
    assert registered.version == 2
    version = registry.voices["alice"][1]
    registry.news.append(lambda: registry.make_ready("alice", version))
    registry.aliases["alice"]["default"] = 1
    assert client.wait_ready(registered).version == 2


def test_an_alias_is_followed_once(connect: Connect, registry: FakeRegistry):
    """The version is the one that the alias pointed to first, even if the alias moves meanwhile."""
    version = registry.add_version("alice", "pending")

    def moved() -> None:
        registry.add_version("alice")
        registry.aliases["alice"]["prod"] = 2

    registry.aliases["alice"]["prod"] = 1
    registry.news.extend([moved, lambda: registry.make_ready("alice", version)])
    assert connect().wait_ready("alice@prod").version == 1


def test_news_arrives_through_long_polls_not_by_sleeping(
    connect: Connect, registry: FakeRegistry, time: FakeTime
):
    """Half a second of sleep per look is half a second per upload."""
    version = registry.add_version("alice", "pending")
    registry.news.append(lambda: registry.make_ready("alice", version))
    connect().wait_ready("alice@1")
    assert time.slept == []
    assert [path for path in registry.paths() if "wait=10" in path]


def test_a_failure_ends_the_wait_with_its_reason(connect: Connect, registry: FakeRegistry):
    """The wait ends at once, although another profile is still being extracted."""
    version = registry.add_version("alice", "processing")

    def fails() -> None:
        version.states[QWEN] = "failed"
        version.errors[QWEN] = "the clip is silent"

    registry.news.append(fails)
    with pytest.raises(errors.ArtifactFailed, match=f"{QWEN}: the clip is silent"):
        connect().wait_ready("alice")
    registry.news.clear()
    with pytest.raises(errors.ArtifactFailed, match="silent"):
        connect().wait_ready("alice", QWEN)


def test_a_wait_that_takes_too_long_says_where_it_stands(
    connect: Connect, registry: FakeRegistry, time: FakeTime
):
    """The wait does not spin: a registry that answers long polls at once is asked a few times a second."""
    registry.add_version("alice", "pending")
    with pytest.raises(errors.ArtifactNotReady, match=f"{ECAPA} pending"):
        connect().wait_ready("alice", timeout=5)
    assert 1004.9 <= time.now <= 1005.1
    assert len(registry.requests) < 50


def test_a_time_out_of_nothing_is_one_look(connect: Connect, registry: FakeRegistry):
    """A way to ask."""
    registry.add_version("alice", "pending")
    with pytest.raises(errors.ArtifactNotReady):
        connect().wait_ready("alice@1", timeout=0)
    assert len(registry.requests) == 1


def test_each_look_is_reported_the_last_one_too(connect: Connect, registry: FakeRegistry):
    """A progress bar lives from it."""
    version = registry.add_version("alice", "pending")
    registry.news.append(lambda: registry.make_ready("alice", version, QWEN))
    registry.news.append(lambda: registry.make_ready("alice", version, ECAPA))
    seen = []
    connect().wait_ready("alice", on_progress=seen.append)
    assert [sum(s.state == "ready" for s in look.artifacts) for look in seen][-3:] == [0, 1, 2]
    assert seen[0].job is None
    assert seen[-1].job.progress.stage == "encoding"


def test_what_is_worked_on_is_watched_first(connect: Connect, registry: FakeRegistry):
    """The other one waits for a worker, and nothing of it will change soon."""
    version = registry.add_version("alice", "pending")
    version.states[QWEN] = "processing"
    seen = []
    registry.news.append(lambda: registry.make_ready("alice", version))
    connect().wait_ready("alice", on_progress=seen.append)
    assert seen[-1].job.profile == QWEN


def test_a_restart_of_the_registry_does_not_end_a_long_wait(
    connect: Connect, registry: FakeRegistry, time: FakeTime
):
    """Somebody has waited ten minutes already."""
    version = registry.add_version("alice", "processing")

    def goes_down() -> None:
        registry.faults.extend(httpx.ConnectError("refused") for _ in range(8))

    registry.news.append(goes_down)
    registry.news.append(lambda: registry.make_ready("alice", version))
    assert connect(retries=1).wait_ready("alice").state == "ready"


def test_a_registry_that_stays_away_ends_it(connect: Connect, registry: FakeRegistry, time: FakeTime):
    """The wait ends when the time is up, with the reason."""
    registry.add_version("alice", "processing")
    registry.news.append(lambda: registry.faults.extend(httpx.ConnectError("refused") for _ in range(999)))
    with pytest.raises(errors.Unavailable, match="refused"):
        connect(retries=1).wait_ready("alice", timeout=30)
    assert 1028 <= time.now <= 1031


def test_a_wrong_address_is_told_at_once(connect: Connect, registry: FakeRegistry, time: FakeTime):
    """Not after ten minutes."""
    registry.faults.extend(httpx.ConnectError("refused") for _ in range(99))
    with pytest.raises(errors.Unavailable):
        connect(retries=0).wait_ready("alice")
    assert len(registry.requests) == 1


def test_an_unknown_voice_is_told_at_once(connect: Connect, registry: FakeRegistry):
    """Nobody will upload it while we wait."""
    for speaker in ("nobody", "nobody@1"):
        with pytest.raises(errors.VoiceNotFound):
            connect().wait_ready(speaker)


def test_a_voice_deleted_while_waiting_ends_it(connect: Connect, registry: FakeRegistry):
    """It will never be ready."""
    registry.add_version("alice", "processing")
    registry.news.append(registry.voices.clear)
    with pytest.raises(errors.VoiceNotFound):
        connect().wait_ready("alice")


def test_a_version_without_a_job_is_looked_at_every_second(
    connect: Connect, registry: FakeRegistry, time: FakeTime
):
    """Its job is about to be made, or its record has gone."""
    version = registry.add_version("alice", "pending")
    registry.keeps_jobs = False
    registry.news.append(lambda: registry.make_ready("alice", version))
    assert connect().wait_ready("alice@1").state == "ready"
    assert time.slept == [1.0]
