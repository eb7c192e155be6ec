"""Tests of campaigns with real processes: a worker of the current encoder, one of a candidate with another
dtype, the API and Valkey, beside a client that fetches all the time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from services.embedded.managed_process import ManagedProcess
from speaker_registry import Campaign, RegistryClient
from tests.integration.test_worker_process import Fetching, is_candidate, profile_of, with_valkey
from tests.process_load import noise_clip
from tests.processes import PROFILE, RegistryProcesses
from tests.queue_workers import START_SECONDS, wait_until

TRAINED = {"SPEAKER_EXTRACTOR_WEIGHTS": "hub", "SPEAKER_PROFILES": PROFILE}
OTHER_DTYPE = {"SPEAKER_EXTRACTOR_DTYPE": "bfloat16"}


@contextmanager
def prepared_fleet(
    folder: Path, voices: int
) -> Iterator[tuple[RegistryProcesses, RegistryClient, ManagedProcess, list[str]]]:
    """A registry whose voices are ready, and a live worker of a candidate."""
    with with_valkey(folder, TRAINED, apis=1) as registry, RegistryClient(registry.urls[0]) as client:
        registry.workers[0].start()
        names = [f"voice-{number}" for number in range(voices)]
        for number, name in enumerate(names):
            client.register(name, noise_clip(number)[0], consent="yes")
        for name in names:
            client.wait_ready(f"{name}@1", timeout=START_SECONDS)
        second = registry.another_worker(OTHER_DTYPE)
        second.start()
        wait_until(partial(is_candidate, client, "dtype"), START_SECONDS)
        yield registry, client, second, names


def candidate_of(client: RegistryClient) -> str:
    [candidate] = profile_of(client).candidates
    return candidate.fingerprint


def until(client: RegistryClient, campaign: Campaign, state: str) -> Campaign:
    """Wait until a campaign is in a state, and return it."""
    wait_until(lambda: client.campaign(PROFILE, campaign.id).state == state, START_SECONDS)
    return client.campaign(PROFILE, campaign.id)


def fetched(client: RegistryClient, names: list[str]) -> dict[str, str]:
    """Return the fingerprint of the artifact that is served of each voice."""
    found = {name: client.download(f"{name}@1", PROFILE).artifact.manifest for name in names}
    return {name: manifest.fingerprint for name, manifest in found.items()}


def prepare_promote_and_go_back(folder: Path, voices: int) -> None:
    """Kill everything that works on a campaign half-way, promote, and go back. Readers notice nothing."""
    with prepared_fleet(folder, voices) as (registry, client, second, names):
        old, new = profile_of(client).fingerprint, candidate_of(client)
        assert old is not None
        with Fetching(registry.urls[0], names) as fetching:
            registry.pace(0.05)
            campaign = client.start_campaign(PROFILE, new, sample=2)
            wait_until(lambda: client.campaign(PROFILE, campaign.id).progress.ready >= voices // 4)
            second.kill()
            second.start()
            wait_until(lambda: client.campaign(PROFILE, campaign.id).progress.ready >= voices // 2)
            registry.redis().client_kill_filter(skipme=True)
            registry.pace(0)
            ended = until(client, campaign, "complete")
            assert (ended.coverage, ended.progress.failed) == (1, 0)
            assert ended.sample.compared == 2
            fetching.go_round()
        assert fetching.strange == []
        assert set(fetched(client, names).values()) == {old}
        made = artifacts_of(registry)
        client.promote_encoder(PROFILE, new)
        assert set(fetched(client, names).values()) == {new}
        with Fetching(registry.urls[0], names) as fetching:
            fetching.go_round()
        assert fetching.strange == []
        client.promote_encoder(PROFILE, old)
        assert set(fetched(client, names).values()) == {old}
        assert artifacts_of(registry) == made == 2 * voices


def artifacts_of(registry: RegistryProcesses) -> int:
    """Return how many artifacts were ever made."""
    return len(list(registry.bucket.glob("*/v/*/d/*/art/*/*.json")))


def test_a_campaign_beside_readers_changes_nothing_until_its_promotion(tmp_path: Path):
    """The whole way: prepared while worker and connections are killed, promoted, and rolled back. Nothing is
    extracted twice, and every answer is 200 with the bytes that are due.
    """
    prepare_promote_and_go_back(tmp_path, 8)


@pytest.mark.slow
def test_a_campaign_over_many_voices_beside_readers_changes_nothing_until_its_promotion(tmp_path: Path):
    """The registry has 200 voices, which is more than may be under way at once."""
    prepare_promote_and_go_back(tmp_path, 200)


@pytest.mark.slow
def test_an_api_that_is_killed_half_way_goes_on_and_promotes_by_itself(tmp_path: Path):
    """The campaign belongs to no process, and neither does the promise to promote."""
    with prepared_fleet(tmp_path, 20) as (registry, client, _, names):
        new = candidate_of(client)
        registry.pace(0.1)
        client.promote_encoder(PROFILE, new, when="complete")
        [campaign] = client.campaigns(PROFILE)
        wait_until(lambda: client.campaign(PROFILE, campaign.id).progress.ready >= 5)
        [api] = registry.apis
        api.kill()
        registry.make_whole()
        until(client, campaign, "promoted")
        assert set(fetched(client, names).values()) == {new}
        assert artifacts_of(registry) == 2 * len(names)
