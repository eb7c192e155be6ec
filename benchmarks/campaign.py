"""Measures a campaign: a worker of another encoder, which computes nothing, extracts all voices while a
client fetches files of them at a steady rate, and is killed three times on the way.

Real processes: an API, a worker of the current encoder, one of the candidate, Valkey and a local folder. The
same fetches are measured directly before without a campaign, so the ratio of both is what a campaign costs.
"""

import asyncio
import os
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.http_load import Answer, Ask, stream
from benchmarks.rebuild import copies, seconds_to_rebuild, upload
from benchmarks.upload_to_ready import CLIP, Caller, p99
from services.embedded.managed_process import ManagedProcess
from speaker_registry import Campaign, RegistryClient
from tests.processes import PROFILE, QUICK, RegistryProcesses

VOICES = int(os.environ.get("CAMPAIGN_VOICES", "10000"))
PER_SECOND = float(os.environ.get("CAMPAIGN_FETCHES", "40"))
"""Fetches a second."""
KILLS = 3
ALONE_SECONDS = 20.0
STEP_SECONDS = 5.0
"""The load is asked for in steps of this length until the campaign is over."""
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
    killed_at: list[float] = field(default_factory=list)
    """Times of the kills, in seconds since the campaign began."""
    first_kill_ready: int = 0
    seconds: float = 0.0
    """Time that the campaign took."""

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def _follow(self) -> None:
        began = time.perf_counter()
        while not self.campaign.over:
            time.sleep(0.2)
            self.campaign = self.client.campaign(PROFILE, self.campaign.id)
            self.seconds = time.perf_counter() - began
            kills, ready = len(self.killed_at), self.campaign.progress.ready
            if kills < KILLS and ready >= VOICES * (kills + 1) // (KILLS + 1):
                self.killed_at.append(self.seconds)
                self.first_kill_ready = self.first_kill_ready or ready
                self.worker.kill()
                self.worker.start()


def fetches(url: str, names: Sequence[str], seconds: float) -> list[Answer]:
    """Return the answers to fetches of files at the steady rate."""

    def next_ask(lucky: random.Random) -> Ask:
        path = f"/v1/voices/{lucky.choice(names)}/versions/1/artifacts/{PROFILE}/file"
        return Ask("file", f"GET {path}")

    load = asyncio.run(
        stream([url], next_ask, per_second=PER_SECOND, seconds=seconds, connections=CONNECTIONS)
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


def measure(folder: Path) -> tuple[list[Answer], list[Answer], Watch, int]:
    """Return the answers without a campaign and beside one, the campaign, and how many artifacts it made."""
    with (
        RegistryProcesses(folder, environment=QUICK, profiles=TRAINED) as registry,
        RegistryClient(registry.urls[0], cache=None) as client,
    ):
        [url] = registry.urls
        upload(Caller(url), MODEL, CLIP.read_bytes())
        names = list(copies(registry.bucket, VOICES))
        seconds_to_rebuild(registry)
        second = registry.another_worker(OTHER_DTYPE)
        second.start()
        candidate = await_candidate(client)
        fetches(url, names, STEP_SECONDS)
        alone = fetches(url, names, ALONE_SECONDS)
        beside: list[Answer] = []
        with Watch(client, client.start_campaign(PROFILE, candidate), second) as watch:
            while not watch.over:
                beside += fetches(url, names, STEP_SECONDS)
        made = len(list(registry.bucket.glob("*/v/*/d/*/art/*/*.json"))) - (VOICES + 1)
        return alone, beside, watch, made


def main() -> bool:
    """Print the table. Returns whether every fetch was answered with 200, and every voice was prepared."""
    with tempfile.TemporaryDirectory() as folder:
        alone, beside, watch, made = measure(Path(folder))
    progress = watch.campaign.progress
    print(f"| {progress.voices:,} voices, worker killed {len(watch.killed_at)} times | |\n|---|---|")
    print(f"| voices/s until the first kill | {watch.first_kill_ready / watch.killed_at[0]:,.0f} |")
    print(f"| voices/s, kills and restarts included | {progress.ready / watch.seconds:,.0f} |")
    print(f"| seconds | {watch.seconds:,.0f} |")
    print(f"| artifacts made, of {progress.voices:,} | {made:,} |\n")
    print(f"| fetches, {PER_SECOND:g} a second | median ms | p99 ms | not 200 |\n|---|---|---|---|")
    rows = {"alone": alone, "beside the campaign": beside}
    times = {name: sorted(1e3 * one.seconds for one in answers) for name, answers in rows.items()}
    strange = {name: sum(one.status != 200 for one in answers) for name, answers in rows.items()}
    for name, taken in times.items():
        print(f"| {name} | {taken[len(taken) // 2]:.1f} | {p99(taken):.1f} | {strange[name]} |")
    one, other = times.values()
    print(f"| ratio | {other[len(other) // 2] / one[len(one) // 2]:.1f} | {p99(other) / p99(one):.1f} | |")
    return not any(strange.values()) and (watch.campaign.state, progress.failed) == ("complete", 0)
