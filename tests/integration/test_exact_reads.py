"""Tests of several API processes that answer from memory: no answer is older than what was acknowledged
before the request, while voices are replaced, promoted and deleted, keys are revoked, and processes are
stopped, killed and cut off from Redis.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from services.registry_api.keys.api_keys import new_token
from services.shared.view.leases import WAIT_SECONDS
from tests.process_load import noise_clip
from tests.processes import PROFILE, QUICK, RegistryProcesses
from tests.queue_workers import wait_until

SECONDS = float(os.environ.get("EXACT_SECONDS", "1"))
"""How long each scenario is read from. `EXACT_SECONDS=600` reads millions of times."""
CHANGES = 4
"""The least number of changes. A busy machine takes longer for them."""
KEYS = 4
"""The number of keys that are made and revoked, each through another process."""
READERS, VOICES = 4, 6
BOOTSTRAP = new_token()
FILE = "/v1/voices/{}/versions/default/artifacts/" + PROFILE + "/file"
UNAVAILABLE = 503
"""An answer that a process may give while it is cut off. It says nothing about the voice."""


@dataclass
class Acknowledged:
    """What was acknowledged about one voice. Every upload of a name has a later `created_at`."""

    created_at: int = 0
    """The version that the name stands for, or a later one."""
    deleted: bool = True
    """True if the voice is deleted, and nothing else was begun."""


@dataclass
class Readings:
    """The voices' states, and what readers found wrong."""

    voices: dict[str, Acknowledged] = field(
        default_factory=lambda: {f"voice-{number}": Acknowledged() for number in range(VOICES)}
    )
    count: int = 0
    wrong: list[str] = field(default_factory=list)
    over: bool = False


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcesses]:
    """Yield four API processes that require keys."""
    environment = {**QUICK, "SPEAKER_AUTH_BOOTSTRAP_KEY": str(BOOTSTRAP)}
    environment["SPEAKER_RATE_REQUESTS_PER_MINUTE"] = "10000000"
    with RegistryProcesses(tmp_path_factory.mktemp("exact"), apis=4, environment=environment) as running:
        yield running


def client_of(url: str, token: object = BOOTSTRAP, seconds: float = 30) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=seconds)


def read(registry: RegistryProcesses, readings: Readings, seed: int) -> None:
    """Read files until the end, from all processes in turn, and hold them against what was acknowledged."""
    lucky = random.Random(seed)
    with ExitStack() as stack:
        clients = [stack.enter_context(client_of(url, seconds=5.0)) for url in registry.urls]
        while not readings.over:
            name = lucky.choice(list(readings.voices))
            known = readings.voices[name]
            at_least, deleted = known.created_at, known.deleted
            try:
                answer = lucky.choice(clients).get(FILE.format(name))
            except httpx.TransportError:
                continue  # the process is stopped or dead
            readings.count += 1
            if answer.status_code == httpx.codes.OK:
                got = int(answer.headers["x-voice-created-at"])
                if deleted and got <= at_least:
                    readings.wrong.append(f"{name} of {got} was served after its delete")
                elif got < at_least:
                    readings.wrong.append(f"{name} of {got} was served after {at_least} was promoted")
            elif answer.status_code not in {202, 404, UNAVAILABLE}:
                readings.wrong.append(f"{name}: {answer.status_code} {answer.text}")


@contextmanager
def read_all_the_time(registry: RegistryProcesses) -> Iterator[Readings]:
    readings = Readings()
    with ThreadPoolExecutor(READERS) as pool:
        readers = [pool.submit(read, registry, readings, seed) for seed in range(READERS)]
        try:
            yield readings
            # A busy machine may not have come to it meanwhile.
            wait_until(lambda: readings.count > SECONDS, 120 + SECONDS)
        finally:
            readings.over = True
        for one in readers:
            one.result()
    assert not readings.wrong, readings.wrong[:5]


def change_something(client: httpx.Client, readings: Readings, number: int) -> None:
    """Upload a voice or another version of it and wait until it is promoted, or delete it."""
    lucky = random.Random(number)
    name, known = lucky.choice(list(readings.voices.items()))
    if known.deleted or lucky.random() < 0.6:
        known.deleted = False
        files = {"audio_sample": ("a.wav", noise_clip(number)[0], "audio/wav")}
        uploaded = client.post("/v1/audio/voices", data={"name": name, "consent": "c"}, files=files)
        if uploaded.status_code != httpx.codes.OK:
            return
        made = uploaded.json()["voice"]
        if client.post(f"/v1/audio/voices/{name}/cache").status_code == httpx.codes.OK:
            job = next(iter(made["jobs"].values()))
            if client.get(f"/v1/jobs/{job}").json()["state"] == "succeeded":
                known.created_at = made["created_at"]
    elif client.delete(f"/v1/audio/voices/{name}").status_code == httpx.codes.OK:
        known.deleted = True


def test_no_process_serves_what_was_taken_away(registry: RegistryProcesses):
    """Voices are uploaded, promoted and deleted through all processes in turn."""
    with ExitStack() as stack:
        clients = [stack.enter_context(client_of(url)) for url in registry.urls]
        readings = stack.enter_context(read_all_the_time(registry))
        end, number = time.monotonic() + SECONDS, 0
        while time.monotonic() < end or number < CHANGES:
            number += 1
            change_something(clients[number % len(clients)], readings, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_process_that_is_stopped_or_killed_delays_changes_for_a_moment_only(
    registry: RegistryProcesses, number: signal.Signals
) -> None:
    """A stopped process serves nothing old when it goes on, and a change waits for its lease at most."""
    with ExitStack() as stack:
        client = stack.enter_context(client_of(registry.urls[0]))
        readings = stack.enter_context(read_all_the_time(registry))
        end, change = time.monotonic() + SECONDS, 1000
        while time.monotonic() < end:
            victim = registry.apis[1 + change % 3]
            assert victim.pid is not None
            os.kill(victim.pid, number)
            began = time.monotonic()
            for _ in range(4):
                change += 1
                change_something(client, readings, change)
            assert time.monotonic() - began < 4 * WAIT_SECONDS + 60  # a busy machine is slow
            if number is signal.SIGSTOP:
                os.kill(victim.pid, signal.SIGCONT)
            else:
                registry.make_whole()


def test_nothing_old_is_served_while_redis_is_paused(registry: RegistryProcesses) -> None:
    """No lease is renewed meanwhile, so every process asks Redis or the bucket again."""
    with ExitStack() as stack:
        client = stack.enter_context(client_of(registry.urls[0]))
        redis = stack.enter_context(registry.redis())
        readings = stack.enter_context(read_all_the_time(registry))
        end, number = time.monotonic() + SECONDS, 2000
        while time.monotonic() < end:
            redis.execute_command("CLIENT", "PAUSE", 1500, "ALL")
            for _ in range(3):
                number += 1
                change_something(client, readings, number)


def test_a_revoked_key_opens_nothing_anywhere(registry: RegistryProcesses):
    """Every process refuses the key from the moment at which its revocation is acknowledged."""
    registry.make_whole()
    with ExitStack() as stack:
        clients = [stack.enter_context(client_of(url)) for url in registry.urls]
        files = {"audio_sample": ("a.wav", noise_clip(1)[0], "audio/wav")}
        uploaded = clients[0].post("/v1/audio/voices", data={"name": "keyed", "consent": "c"}, files=files)
        assert uploaded.status_code == httpx.codes.OK
        assert clients[0].post("/v1/audio/voices/keyed/cache").status_code == httpx.codes.OK
        for number in range(KEYS):
            body = {"name": "test", "scopes": ["engine"], "namespace": "default"}
            made = clients[number % 4].post("/v1/keys", json=body).json()
            holders = [stack.enter_context(client_of(url, made["key"])) for url in registry.urls]
            for holder in holders:
                for _ in range(3):
                    assert holder.get(FILE.format("keyed")).status_code == httpx.codes.OK
            asking = threading.Event()

            def keep_asking(holder: httpx.Client, over: threading.Event = asking) -> None:
                while not over.is_set():
                    holder.get(FILE.format("keyed"))

            with ThreadPoolExecutor(4) as pool:
                for url in registry.urls:
                    pool.submit(keep_asking, stack.enter_context(client_of(url, made["key"])))
                time.sleep(0.05)
                revoked = clients[(number + 1) % 4].delete(f"/v1/keys/{made['id']}")
                assert revoked.status_code == httpx.codes.NO_CONTENT
                statuses = [holder.get(FILE.format("keyed")).status_code for holder in holders]
                asking.set()
            assert set(statuses) <= {401, 429}, statuses  # 429: after too many refusals of one address
