"""Measures a campaign: a worker of another encoder, which computes nothing, extracts all voices while a
client fetches files of them at a steady rate, and is killed three times on the way.

Real processes: an API, a worker of the current encoder, one of the candidate, Valkey and a local folder. The
campaign is paused every few seconds, and the same fetches are measured without it. So the ratio of both is
what a campaign costs, even on a machine that is not always equally fast.
"""

import asyncio
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Self

from benchmarks.http_load import Answer, Ask, stream
from benchmarks.rebuild import copies, seconds_to_rebuild, upload_model
from benchmarks.upload_to_ready import CLIP, Caller, p99
from services.embedded.managed_process import ManagedProcess
from speaker_registry import Campaign, RegistryClient
from speaker_registry.errors import CampaignEnded
from tests.processes import PROFILE, QUICK, RegistryProcesses

VOICES = int(os.environ.get("CAMPAIGN_VOICES", "2000"))
PER_SECOND = float(os.environ.get("CAMPAIGN_FETCHES", "40"))
"""Fetches a second."""
KILLS = 3
STEP_SECONDS = 5.0
"""The campaign goes on for so long, and is paused for as long, in turn."""
CONNECTIONS = 16
MODEL = "voice-model"
TRAINED = {"SPEAKER_EXTRACTOR_WEIGHTS": "hub", "SPEAKER_PROFILES": PROFILE}
OTHER_DTYPE = {"SPEAKER_EXTRACTOR_DTYPE": "bfloat16"}


@dataclass
class Watch:
    """Follows a campaign on a thread, and kills its worker whenever a further quarter of the voices is
    ready.
    """

    client: RegistryClient
    campaign: Campaign
    worker: ManagedProcess
    kills: int = 0

    def __enter__(self) -> Self:
        self._left = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._following = self._thread.submit(self._follow)
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()  # a campaign that stays paused after an error would never be over
        self._thread.shutdown()

    def _follow(self) -> None:
        while not self.campaign.over and not self._left.wait(0.2):
            self.campaign = self.client.campaign(PROFILE, self.campaign.id)
            ready = self.campaign.progress.ready
            if self.kills < KILLS and ready >= VOICES * (self.kills + 1) // (KILLS + 1):
                self.kills += 1
                self.worker.kill()
                self.worker.start()

    @property
    def over(self) -> bool:
        """Return whether the campaign is over. If the thread that follows it has failed, raises its error:
        nobody would notice the end of the campaign, or start the worker again.
        """
        if self._following.done():
            self._following.result()
        return self.campaign.over

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the campaign, if it is not over, and wait until nothing of it is under way."""
        with suppress(CampaignEnded):
            self.client.pause_campaign(PROFILE, self.campaign.id)
        while not self.over and self.client.campaign(PROFILE, self.campaign.id).progress.under_way:
            time.sleep(0.05)
        yield
        with suppress(CampaignEnded):
            self.client.resume_campaign(PROFILE, self.campaign.id)


@dataclass
class Measured:
    """The answers to fetches without the campaign and beside it, and the campaign itself."""

    campaign: Campaign
    kills: int
    made: int
    """Number of artifacts that the candidate's worker stored."""
    seconds: float
    """Time for which the campaign was not paused."""
    alone: list[Answer]
    beside: list[Answer]


def fetches(url: str, names: Sequence[str]) -> list[Answer]:
    """Return the answers to fetches of files, which are sent at the steady rate for one step."""

    def next_ask(lucky: random.Random) -> Ask:
        path = f"/v1/voices/{lucky.choice(names)}/versions/1/artifacts/{PROFILE}/file"
        return Ask("file", f"GET {path}")

    load = asyncio.run(
        stream([url], next_ask, per_second=PER_SECOND, seconds=STEP_SECONDS, connections=CONNECTIONS)
    )
    return load.answers


def await_candidate(client: RegistryClient) -> str:
    """Return the fingerprint of the candidate once its worker has come."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        [profile] = [one for one in client.profiles() if one.id == PROFILE]
        if profile.candidates and profile.candidates[0].workers:
            return profile.candidates[0].fingerprint
        time.sleep(0.1)
    raise TimeoutError("The worker of the candidate does not come.")


def measure(folder: Path) -> Measured:
    with (
        RegistryProcesses(folder, environment=QUICK, profiles=TRAINED) as registry,
        RegistryClient(registry.urls[0], cache=None) as client,
    ):
        [url] = registry.urls
        upload_model(Caller(url), MODEL, CLIP.read_bytes())
        names = list(copies(registry.bucket, VOICES))
        seconds_to_rebuild(registry)
        second = registry.another_worker(OTHER_DTYPE)
        second.start()
        candidate = await_candidate(client)
        fetches(url, names)  # warms the API up
        seconds, alone, beside = 0.0, [], []
        with Watch(client, client.start_campaign(PROFILE, candidate), second) as watch:
            while not watch.over:
                began = time.perf_counter()
                beside += fetches(url, names)
                with watch.paused():
                    seconds += time.perf_counter() - began
                    alone += fetches(url, names)
        made = len(list(registry.bucket.glob("*/d/*/*/*.safetensors"))) - (VOICES + 1)
        return Measured(watch.campaign, watch.kills, made, seconds, alone, beside)


def _counts(statuses: Counter[int]) -> str:
    return ", ".join(f"{count} times {status}" for status, count in sorted(statuses.items())) or "0"


def main() -> bool:
    """Print the tables. Returns whether every fetch was answered with 200, and every voice was prepared
    although the worker was killed three times.
    """
    with tempfile.TemporaryDirectory() as folder:
        seen = measure(Path(folder))
    progress = seen.campaign.progress
    print(f"| {progress.voices:,} voices, worker killed {seen.kills} times | |\n|---|---|")
    print(f"| voices/s, restarts included | {progress.ready / seen.seconds:,.0f} |")
    print(f"| artifacts stored | {seen.made:,} |\n")
    print(
        f"| fetches, {PER_SECOND:g} a second | number | median ms | p99 ms | not 200 |\n|---|---|---|---|---|"
    )
    rows = {"campaign paused": seen.alone, "beside the campaign": seen.beside}
    times = {name: [1e3 * one.seconds for one in answers] for name, answers in rows.items()}
    strange = {
        name: Counter(one.status for one in answers if one.status != 200) for name, answers in rows.items()
    }
    for name, taken in times.items():
        cells = f"{len(taken):,} | {median(taken):.1f} | {p99(taken):.1f} | {_counts(strange[name])}"
        print(f"| {name} | {cells} |")
    paused, beside = times.values()
    print(f"| ratio | | {median(beside) / median(paused):.1f} | {p99(beside) / p99(paused):.1f} | |")
    ended = (seen.campaign.state, progress.failed, seen.kills)
    return not any(strange.values()) and ended == ("complete", 0, KILLS)
