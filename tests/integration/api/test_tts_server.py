"""Tests of a TTS server of several processes under load, with the plugin inside, while its voices are
replaced and deleted and the registry is cut off, silent, killed and started again.
"""

import bisect
import itertools
import math
import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from speaker_registry import RegistryClient
from tests.integration.api.conftest import Start
from tests.processes import PROFILE, QUICK, RegistryProcesses
from tests.queue_workers import wait_until
from tests.relay import Relay
from tests.tts_server import API_PROCESSES, HIGHEST, MODEL_PROCESS, PROCESSES, TtsServer, artifact, clip

SECONDS = float(os.environ.get("TTS_SECONDS", "10"))
"""How long the slow test goes on."""
POLL_SECONDS = 0.2
VOICES = ("alice", "bob", "carol")
REQUESTS = 12
"""The number of requests of each API process that are waited for while the registry is away."""


@dataclass
class Change:
    """A voice got another version, or was deleted."""

    voice: str
    number: int | None
    """The number that its new clip tells, or None if it was deleted."""
    began: float
    ended: float = math.inf
    created_at: int = 0


class Upload(Protocol):
    def __call__(self, voice: str, clip: bytes, ref_text: str) -> object: ...


class Writer:
    """Changes voices, one change after the other, and remembers when each was acknowledged."""

    def __init__(self, client: RegistryClient, upload: Upload, seed: int) -> None:
        self._client, self._upload, self._lucky = client, upload, random.Random(seed)
        self._last = 0
        self.changes: list[Change] = []

    def replace(self, voice: str) -> None:
        self._last = self._last % HIGHEST + 1
        change = Change(voice, self._last, time.monotonic())
        self.changes.append(change)
        self._upload(voice, clip(self._last), text_of(self._last))
        wait_until(lambda: self._is_ready(change))
        change.ended = time.monotonic()

    def _is_ready(self, change: Change) -> bool:
        for entry in self._client.manifest(PROFILE):
            if (entry.voice, entry.ref_text, entry.state) == (change.voice, text_of(self._last), "ready"):
                change.created_at = entry.created_at
                return True
        return False

    def delete(self, voice: str) -> None:
        change = Change(voice, None, time.monotonic())
        self.changes.append(change)
        self._client.delete(voice)
        change.ended = time.monotonic()

    def change_something(self) -> None:
        voice = self._lucky.choice(VOICES)
        last = [one.number for one in self.changes if one.voice == voice][-1:]
        if last == [None] or self._lucky.random() < 0.6:
            self.replace(voice)
            return
        self.delete(voice)

    def register_anew(self, voice: str) -> None:
        """Have a name mean another voice. Whoever looks seldom never meets it without a voice."""
        self.delete(voice)
        self.replace(voice)

    def change_for(self, seconds: float, at_least: int) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end or at_least > 0:
            self.change_something()
            at_least -= 1


def text_of(number: int) -> str:
    return f"Text {number}."


def test_no_request_mixes_versions_meets_an_old_one_or_waits_for_the_registry(start: Start, tmp_path: Path):
    """What a person hears is of one version, of the current one, and comes while the registry is away."""
    registry = start()

    def upload(voice: str, clip: bytes, ref_text: str) -> None:
        number = int(ref_text.removeprefix("Text ").removesuffix("."))
        registry.upload(voice, clip=clip, ref_text=ref_text)
        for attempt in registry.worker.take_all(voice):
            registry.worker.publish(attempt, artifact(number))

    with RegistryClient(registry.url) as client, Relay(registry.port) as relay:
        relay.open()
        writer = Writer(client, upload, seed=1)
        for voice in VOICES:
            writer.replace(voice)
        with TtsServer(relay.url, tmp_path / "samples", PROFILE, POLL_SECONDS, *VOICES) as server:
            server.await_looks()
            writer.change_for(1.0, at_least=3)
            relay.close()
            server.await_looks(fault=True)
            server.await_requests(REQUESTS)
            for voice in VOICES:
                writer.replace(voice)
                writer.register_anew(voice)
            relay.open(silent=True)
            server.await_requests_during_a_look(REQUESTS)
            relay.close()
            relay.open()
            writer.change_for(0.5, at_least=3)
            await_end(writer, server)
    check(writer.changes, server)


@pytest.mark.slow
def test_the_same_while_the_registry_is_stopped_and_killed_again_and_again(tmp_path: Path):
    """Real processes die at any point of an answer."""
    profiles = {"SPEAKER_PROFILES": PROFILE, "SPEAKER_EXTRACTOR_PROFILES": PROFILE}
    profiles["SPEAKER_EXTRACTOR_WEIGHTS"] = "untrained"
    with (
        RegistryProcesses(
            tmp_path, environment=QUICK, profiles=profiles, worker="tests.numbered_worker"
        ) as registry,
        RegistryClient(registry.urls[0]) as client,
    ):
        writer = Writer(
            client, lambda voice, clip, text: client.register(voice, clip, consent="c", ref_text=text), seed=2
        )
        for voice in VOICES:
            writer.replace(voice)
        with TtsServer(client.url, tmp_path / "samples", PROFILE, POLL_SECONDS, *VOICES) as server:
            server.await_looks()
            end, [api] = time.monotonic() + SECONDS, registry.apis
            while time.monotonic() < end:
                assert api.pid is not None
                writer.change_for(1.0, at_least=3)
                os.kill(api.pid, signal.SIGSTOP)
                server.await_requests_during_a_look(REQUESTS)
                os.kill(api.pid, signal.SIGKILL)
                server.await_looks(fault=True)
                server.await_requests(REQUESTS)
                registry.make_whole()
            await_end(writer, server)
    check(writer.changes, server)


def await_end(writer: Writer, server: TtsServer) -> None:
    """Delete a voice and register another one anew, and wait until the server must know of it."""
    for voice in VOICES[:2]:
        writer.replace(voice)
    server.await_looks()
    server.await_requests(REQUESTS)
    writer.delete(VOICES[0])
    writer.register_anew(VOICES[1])
    server.await_looks()
    server.await_requests(REQUESTS)


# What must hold. Times of all processes are of one clock.


def check(changes: Sequence[Change], server: TtsServer) -> None:
    assert not [one for process in PROCESSES for one in server.of(process, "network")]
    for process in API_PROCESSES:
        [begin] = server.of(process, "serves_since")  # looks before it had no server to tell
        looks = [
            one
            for one in server.of(process, "look")
            if one.get("fault") == "" and one["began"] >= begin["serves_since"]
        ]
        requests = server.of(process, "voice")
        for voice in VOICES:
            own = [one for one in changes if one.voice == voice]
            known = Known(looks, own)
            for request in (one for one in requests if one["voice"] == voice):
                wrong = fault_of(request, own, known.at(request["began"]))
                assert not wrong, (wrong, request, own, looks[-3:])
        assert sum(one.get("hit", False) for one in requests) > REQUESTS
    check_what_is_held(changes, server)


def fault_of(request: Mapping[str, Any], changes: Sequence[Change], first: int) -> str:
    """Return what is wrong with the answer to a request, or nothing.

    Args:
        first: The place of the last change that the process had to know when the request began. It may know
            later ones.
    """
    allowed = [one.number for one in changes[max(first, 0) :] if one.began <= request["ended"]]
    if first < 0:
        allowed.append(None)  # no look has told this process of the voice
    if "speaker" not in request:
        return "" if None in allowed else "the voice is there, and the request failed"
    if not request["speaker"] == request["codes"] == request["clip"]:
        return "speaker embedding, codes and clip are not of one version"
    if {request["text"], request["cached_text"]} != {text_of(request["speaker"])}:
        return "the text is of another version"
    return "" if request["speaker"] in allowed else "the version is none that may be served now"


class Known:
    """Tells what a process must know of a voice at which time, from its looks at the registry.

    Whatever was acknowledged before a look began must be known when it ended, deletions included. A look
    begins one interval after the last one ended, so this is stricter than two intervals, on any machine.
    """

    def __init__(self, looks: Sequence[Mapping[str, Any]], changes: Sequence[Change]) -> None:
        self._ends = [look["ended"] for look in looks]
        places = (known_after(look, changes) for look in looks)
        self._places = list(itertools.accumulate((-1 if one is None else one for one in places), max))

    def at(self, moment: float) -> int:
        """Return the place of the last change that was known, or -1."""
        looked = bisect.bisect_right(self._ends, moment)
        return self._places[looked - 1] if looked else -1


def known_after(look: Mapping[str, Any], changes: Sequence[Change]) -> int | None:
    """Return the place of the change that a process must know after a look. None: it cannot be said, because
    the voice changed again during the look.
    """
    if any(one.began <= look["ended"] and one.ended > look["began"] for one in changes):
        return None
    return max((place for place, one in enumerate(changes) if one.ended <= look["began"]), default=None)


def check_what_is_held(changes: Sequence[Change], server: TtsServer) -> None:
    """Check that nothing of what was deleted is left in the end, also if its name means another voice now."""
    last = {one.voice: place for place, one in enumerate(changes) if one.number is None}
    gone = {
        (one.voice, one.created_at) for place, one in enumerate(changes) if place < last.get(one.voice, -1)
    }
    held = [one["held"] for one in server.of(MODEL_PROCESS, "held")]
    offered = [one["offered"] for process in API_PROCESSES for one in server.of(process, "offered")]
    assert len(held + offered) == 3
    for pairs in held + offered:
        names = {(name.partition("@")[0], created_at) for name, created_at in pairs}
        assert names
        assert not names & gone, (sorted(names & gone), pairs)
