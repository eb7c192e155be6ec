"""Tests of campaigns with real processes: a worker of the current encoder, one of a candidate with another
dtype, two API processes and Valkey, beside a client that fetches all the time.
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from services.embedded.managed_process import ManagedProcess
from services.shared.configuration.worker import ExtractorSettings
from services.shared.model.document import SpeakerDocument
from speaker_registry import Campaign, RegistryClient
from speaker_registry.artifact import read_tensors
from tests.integration.test_worker_process import is_candidate, is_ready, profile_of, with_valkey
from tests.process_load import Rounds, ready_voices
from tests.processes import PROFILE, RegistryProcesses
from tests.queue_workers import START_SECONDS, wait_until

TRAINED = {"SPEAKER_EXTRACTOR_WEIGHTS": "hub", "SPEAKER_PROFILES": PROFILE}
OTHER_DTYPE = {"SPEAKER_EXTRACTOR_DTYPE": "bfloat16"}


class Fleet:
    """A registry of two API processes whose voices are ready, and a live worker of a candidate."""

    def __init__(
        self, registry: RegistryProcesses, client: RegistryClient, second: ManagedProcess, names: list[str]
    ) -> None:
        self.registry = registry
        self.client = client
        self.second = second
        self.names = names
        [candidate] = [one for one in profile_of(client).candidates if one.differs.keys() == {"dtype"}]
        self.old, self.new = str(profile_of(client).fingerprint), candidate.fingerprint

    def ready_of(self, campaign: Campaign, voices: int) -> None:
        """Wait until a campaign has prepared so many voices."""
        wait_until(lambda: self._seen(campaign).progress.ready >= voices)

    def until(self, campaign: Campaign, state: str) -> Campaign:
        """Wait until a campaign is in a state, and return it."""
        wait_until(lambda: self._seen(campaign).state == state, START_SECONDS)
        return self._seen(campaign)

    def _seen(self, campaign: Campaign) -> Campaign:
        return self.client.campaign(PROFILE, campaign.id)

    def served(self) -> set[str]:
        """Return the fingerprints of the artifacts that are served."""
        found = (self.client.download(f"{name}@1", PROFILE).artifact.manifest for name in self.names)
        return {manifest.fingerprint for manifest in found}

    def assert_each_was_made_once(self) -> None:
        """See that each voice has an artifact of either encoder, and that nothing was extracted twice.

        A worker that is killed may leave the files of the clips that it was publishing, which no document
        names.
        """
        bucket = self.registry.bucket
        documents = [SpeakerDocument.parse(path.read_bytes()) for path in bucket.glob("*/s/*.json")]
        assert sum(len(document.digests) for document in documents) == 2 * len(self.names)
        stored = len(list(bucket.glob("*/d/*/*/*.safetensors")))
        assert stored <= 2 * len(self.names) + ExtractorSettings(weights="hub").threads

    def restart(self, process: ManagedProcess) -> None:
        """Kill a process, and start it again. An API is awaited, a worker is not."""
        process.kill()
        process.start()
        if process in self.registry.apis:
            url = self.registry.urls[self.registry.apis.index(process)]
            wait_until(lambda: is_ready(url), START_SECONDS)


@contextmanager
def prepared_fleet(folder: Path, voices: int) -> Iterator[Fleet]:
    with with_valkey(folder, TRAINED, apis=2) as registry, RegistryClient(registry.urls[1]) as client:
        registry.workers[0].start()
        second = registry.another_worker(OTHER_DTYPE)
        names = ready_voices(client, voices)
        second.start()
        wait_until(partial(is_candidate, client, "dtype"), START_SECONDS)
        yield Fleet(registry, client, second, names)


class Reading(Rounds):
    """Fetches the files of voices all the time, each from the first API that answers, as behind a proxy.

    `strange` lists answers that are not 200, are no whole artifact, or differ from an earlier one with the
    same fingerprint. `turns` holds the fingerprints of each voice in the order in which they were served.
    """

    def __init__(self, urls: Sequence[str], names: Sequence[str]) -> None:
        super().__init__()
        self._urls = urls
        self.etags: dict[tuple[str, str], str] = {}
        self.strange: list[str] = []
        self.turns: dict[str, list[str]] = {name: [] for name in names}

    def fetch_all(self, client: httpx.Client) -> None:
        for name in self.turns:
            self._look(name, self._fetch(client, name))

    def _fetch(self, client: httpx.Client, name: str) -> httpx.Response:
        path = f"/v1/voices/{name}/versions/1/artifacts/{PROFILE}/file"
        for url in itertools.islice(itertools.cycle(self._urls), 100):
            with suppress(httpx.TransportError):
                return client.get(url + path)
        raise AssertionError("no API answers")

    def _look(self, name: str, answer: httpx.Response) -> None:
        etag = f'"sha256:{hashlib.sha256(answer.content).hexdigest()}"'
        if (answer.status_code, answer.headers.get("ETag")) != (200, etag):
            self.strange.append(f"{name}: {answer.status_code} {dict(answer.headers)}")
            return
        fingerprint = read_tensors(answer.content)[1].fingerprint
        known = self.etags.setdefault((name, fingerprint), etag)
        if (known, answer.headers["X-Artifact-Fingerprint"]) != (etag, fingerprint):
            self.strange.append(f"{name}: {fingerprint} as {etag}, {dict(answer.headers)}")
        if self.turns[name][-1:] != [fingerprint]:
            self.turns[name].append(fingerprint)


VOICES = 200
"""More than may be under way at once."""


@pytest.mark.slow
def test_a_campaign_beside_readers_changes_nothing_until_its_promotion(tmp_path: Path):
    """The whole way: prepared while every process and connection is killed, promoted, and rolled back.
    Nothing is extracted twice, and every answer is 200 with the bytes that are due.
    """
    with prepared_fleet(tmp_path, VOICES) as fleet:
        registry, client, old, new = fleet.registry, fleet.client, fleet.old, fleet.new
        with Reading(registry.urls, fleet.names) as reading:
            registry.pace(0.05)
            campaign = client.start_campaign(PROFILE, new, sample=2)
            fleet.ready_of(campaign, VOICES // 8)
            fleet.restart(fleet.second)
            fleet.restart(registry.workers[0])
            fleet.ready_of(campaign, VOICES // 4)
            fleet.restart(registry.apis[0])
            fleet.ready_of(campaign, VOICES // 2)
            registry.redis().client_kill_filter(skipme=True)
            registry.pace(0)
            ended = fleet.until(campaign, "complete")
            assert (ended.coverage, ended.progress.failed, ended.sample.compared) == (1, 0, 2)
            reading.go_round()
            assert set(map(tuple, reading.turns.values())) == {(old,)}
            client.promote_encoder(PROFILE, new)
            assert fleet.served() == {new}
            fleet.restart(registry.apis[0])
            assert fleet.served() == {new}
            reading.go_round()
            client.promote_encoder(PROFILE, old)
            assert fleet.served() == {old}
            reading.go_round()
        assert reading.strange == []
        assert set(map(tuple, reading.turns.values())) == {(old, new, old)}
        fleet.assert_each_was_made_once()


@pytest.mark.slow
def test_a_campaign_whose_api_is_killed_half_way_goes_on_and_promotes_by_itself(tmp_path: Path):
    """The campaign belongs to no process, and neither does the promise to promote."""
    with prepared_fleet(tmp_path, 20) as fleet:
        fleet.registry.pace(0.1)
        fleet.client.promote_encoder(PROFILE, fleet.new, when="complete")
        [campaign] = fleet.client.campaigns(PROFILE)
        fleet.ready_of(campaign, 5)
        for api in fleet.registry.apis:
            api.kill()
        for api in fleet.registry.apis:
            fleet.restart(api)
        fleet.until(campaign, "promoted")
        assert fleet.served() == {fleet.new}
        fleet.assert_each_was_made_once()
