"""Clients that keep a registry busy and remember what they were told. Each voice has one writer, so what must
be there in the end follows from the answers to that one; everybody reads everything. Knows no processes.
"""

import hashlib
import io
import random
import threading
import wave
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Self

import httpx
import numpy as np

from speaker_registry import RegistryClient
from speaker_registry.artifact import Artifact
from speaker_registry.errors import ArtifactNotReady, NotFound, SpeakerRegistryError, Unavailable
from tests.light_worker import MARK, marks_of
from tests.processes import PROFILE
from tests.queue_workers import START_SECONDS, wait_until

RATE = 8_000
MAX_STEPS = 20_000
"""The largest number of steps of one thread, because the load is bounded in count too."""
PATIENCE_SECONDS = 40
"""Longer than any request takes. One given up earlier could still be carried out, after later ones."""


def noise_clip(seed: int) -> tuple[bytes, np.ndarray]:
    """A WAV file of a second of noise, and its samples as decoders give them."""
    noise = np.random.default_rng(seed).integers(-8000, 8000, RATE, dtype=np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes(noise.tobytes())
    return file.getvalue(), noise.astype(np.float32) / 2**15


@dataclass
class Ledger:
    """The knowledge that the one writer of a voice has of it."""

    name: str
    marks: dict[str, np.ndarray] = field(default_factory=dict)
    """sha256 of every clip sent -> what its artifact must show."""
    there: dict[int, str] = field(default_factory=dict)
    """Version -> sha256 of its clip. Acknowledged, and no delete was begun since."""
    gone: list[int] = field(default_factory=list)
    """Versions that an acknowledged delete covers."""


class Load:
    """Threads that write and read until the block of `running` ends. `violations`: what must never be."""

    def __init__(self, urls: Sequence[str], *, writers: int, readers: int, seed: int) -> None:
        self._urls = urls
        self._stop = threading.Event()
        self.ledgers = [Ledger(f"voice-{number}") for number in range(writers)]
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.digests: dict[tuple[str, int], str] = {}
        """(name, version) -> digest as first seen."""
        acts = [*(self._writing(ledger) for ledger in self.ledgers), *[self._look_around] * readers]
        self._threads = [
            threading.Thread(target=self._repeat, args=(act, random.Random(f"{seed}/{number}")))
            for number, act in enumerate(acts)
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(2 * PATIENCE_SECONDS)

    def _repeat(self, act: Callable[[RegistryClient, random.Random], None], chance: random.Random) -> None:
        # Some repeat what got no answer, with the same idempotency key; some leave it at that.
        clients = [
            RegistryClient(url, timeout=PATIENCE_SECONDS, retries=chance.choice((0, 3)), cache=None)
            for url in self._urls
        ]
        for _ in range(MAX_STEPS):
            try:
                act(chance.choice(clients), chance)
            except Exception as error:  # noqa: BLE001  whatever it is, no client may ever see it
                self.violations.append(f"{type(error).__name__}: {error}")
            if self._stop.wait(chance.uniform(0, 0.05)):
                break
        for client in clients:
            client.close()

    # -- writing

    def _writing(self, ledger: Ledger) -> Callable[[RegistryClient, random.Random], None]:
        steps = {self._register: 20, self._cache: 10, self._delete: 1}

        def write(client: RegistryClient, chance: random.Random) -> None:
            step = chance.choices(list(steps), list(steps.values()))[0]
            try:
                step(ledger, client, chance)
            except Unavailable:
                self.counts[f"{step.__name__} unanswered"] += 1
            else:
                self.counts[step.__name__] += 1

        return write

    def _register(self, ledger: Ledger, client: RegistryClient, chance: random.Random) -> None:
        data, samples = noise_clip(chance.getrandbits(64))
        sha256 = hashlib.sha256(data).hexdigest()
        ledger.marks[sha256] = marks_of(samples)
        version = client.register(ledger.name, data, consent="cons_1", ref_text=sha256).version
        if version in ledger.gone or version in ledger.there:
            self.violations.append(f"{ledger.name}@{version}: the number was used before")
        ledger.there[version] = sha256

    def _cache(self, ledger: Ledger, client: RegistryClient, chance: random.Random) -> None:
        """The precompute call of TTS servers: not the SDK's, so by hand."""
        url = f"{client.url}/v1/audio/voices/{ledger.name}/cache"
        try:
            status = httpx.post(
                url, params={"wait": chance.choice((0, 1))}, timeout=PATIENCE_SECONDS
            ).status_code
        except httpx.TransportError as error:
            raise Unavailable(str(error)) from None
        if status == 503:
            raise Unavailable("503")
        if status not in {200, 202, 404}:
            self.violations.append(f"cache of {ledger.name}: {status}")

    def _delete(self, ledger: Ledger, client: RegistryClient, _: random.Random) -> None:
        covered, ledger.there = list(ledger.there), {}
        with suppress(NotFound):  # a first try whose answer was lost
            client.delete(ledger.name)
        ledger.gone += covered

    # -- reading

    def _look_around(self, client: RegistryClient, chance: random.Random) -> None:
        ledger = chance.choice(self.ledgers)
        versions = ledger.gone if chance.random() < 0.2 else list(ledger.there.copy())
        if versions:
            self.look(ledger, chance.choice(versions), client)

    def look(self, ledger: Ledger, version: int, client: RegistryClient) -> None:
        """Read an artifact, and hold what comes against what was promised."""
        dead = version in ledger.gone
        try:
            artifact = client.download(ledger.name, PROFILE, version=version).artifact
        except Unavailable:
            self.counts["read unanswered"] += 1
        except ArtifactNotReady:
            self.counts["read too early"] += 1
        except NotFound:
            self.counts["read of what is gone"] += 1
            if version in ledger.there:
                self.violations.append(f"{ledger.name}@{version} was acknowledged and is not found")
        except SpeakerRegistryError as error:
            self.violations.append(f"{ledger.name}@{version}: {error!r}")
        else:
            self.counts["read"] += 1
            if dead:
                self.violations.append(f"{ledger.name}@{version} was deleted and is served")
            self._check(ledger, version, artifact)

    def _check(self, ledger: Ledger, version: int, artifact: Artifact) -> None:
        """It is of the clip it says, and always has been the same."""
        seen = (ledger.name, version)
        if self.digests.setdefault(seen, artifact.digest) != artifact.digest:
            self.violations.append(f"{seen} changed its bytes")
        expected = ledger.marks.get(artifact.manifest.audio_sha256 or "")
        shown = artifact.tensors["speaker_embedding"][:MARK]
        if artifact.manifest.version != version or expected is None or not np.array_equal(shown, expected):
            self.violations.append(f"{seen} is of another clip")


def ready_voices(client: RegistryClient, count: int) -> list[str]:
    """Register so many voices, wait until each is ready, and return their names."""
    names = [f"voice-{number}" for number in range(count)]
    for number, name in enumerate(names):
        client.register(name, noise_clip(number)[0], consent="yes")
    for name in names:
        client.wait_ready(f"{name}@1", timeout=START_SECONDS)
    return names


class Rounds(ABC):
    """Fetches the same files again and again, on a thread, while a block runs."""

    def __init__(self) -> None:
        self._rounds = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        self.go_round()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def go_round(self) -> None:
        """Wait until every file was fetched once more."""
        last = self._rounds + 2  # the round under way may have begun before
        wait_until(lambda: self._rounds >= last or not self._thread.is_alive(), START_SECONDS)
        assert self._thread.is_alive()

    def _run(self) -> None:
        with httpx.Client(timeout=START_SECONDS) as client:
            while not self._stop.is_set():
                self.fetch_all(client)
                self._rounds += 1

    @abstractmethod
    def fetch_all(self, client: httpx.Client) -> None:
        """Fetch every file once."""
