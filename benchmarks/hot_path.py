"""Compares what an API process answers from memory with nginx that serves the same bytes, and times how long
a change takes to be acknowledged.

Keys are required and metrics are on. nginx has one worker.
"""

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from benchmarks.wrk import Measured, measure, missing_tools, nginx, on_server_core
from services.registry_api.keys.api_keys import new_token
from tests.processes import PROFILE, RegistryProcesses
from tests.unit.audio import clips

ROUNDS = int(os.environ.get("HOT_PATH_ROUNDS", "3"))
WORKING_SET = int(os.environ.get("HOT_PATH_VOICES", "1000"))
CHANGES = int(os.environ.get("HOT_PATH_CHANGES", "50"))
RESOLVED, RESOLVE_GOAL = 100, 1500
"""Voices that one request resolves, and the least number of such requests per second."""
CLIP_SECONDS = 12.0
"""An artifact of a clip of this length takes about 24 KB."""
GOALS = {"file": 0.7, "304": 0.9, "descriptor": 0.7}
"""Least requests per second, as shares of nginx's for the file."""
TOKEN = new_token()
ENVIRONMENT = {
    "SPEAKER_AUTH_BOOTSTRAP_KEY": str(TOKEN),
    "SPEAKER_LIMIT_REQUESTS_PER_MINUTE": "100000000",
    "SPEAKER_LIMIT_UPLOADS_PER_MINUTE": "100000000",
}
KEY = f"Authorization: Bearer {TOKEN}"
ARTIFACT = "/v1/voices/{}/versions/default/artifacts/" + PROFILE


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)


def register(client: httpx.Client, name: str, number: int) -> None:
    """Register a voice, and wait until its artifact is ready."""
    clip = clips.wav(CLIP_SECONDS + number / 16_000)
    files = {"audio_sample": ("a.wav", clip, "audio/wav")}
    client.post("/v1/audio/voices", data={"name": name, "consent": "c"}, files=files).raise_for_status()
    client.post(f"/v1/audio/voices/{name}/cache").raise_for_status()


def compare(folder: Path) -> bool:
    """Measure one voice, and a working set of many. Returns whether the goals are reached."""
    with (
        RegistryProcesses(folder, environment=ENVIRONMENT) as registry,
        client_of(registry.urls[0]) as client,
    ):
        pid = registry.apis[0].pid
        assert pid is not None
        on_server_core(pid)
        register(client, "voice-0", 0)
        path = ARTIFACT.format("voice-0")
        file = client.get(f"{path}/file")
        url, tag = f"{registry.urls[0]}{path}", f"If-None-Match: {file.headers['etag']}"
        print(f"{len(file.content):,} bytes\n")
        print("| what | requests/s | of nginx | median, ms | p99, ms | failed |\n|---|---|---|---|---|---|")
        reached = True
        with tempfile.TemporaryDirectory() as root, nginx(Path(root), file.content) as reference:
            measures: dict[str, Callable[[], Measured]] = {
                "nginx": lambda: measure(reference),
                "file": lambda: measure(f"{url}/file", KEY),
                "304": lambda: measure(f"{url}/file", KEY, tag),
                "descriptor": lambda: measure(url, KEY),
            }
            seen = rounds(measures)
            for name, found in seen.items():
                share = found.per_second / seen["nginx"].per_second
                print(row(name, found, share))
                reached &= share >= GOALS.get(name, 0.0) and not found.failed
            for number in range(1, WORKING_SET):
                register(client, f"voice-{number}", number)
            voices, question = Path(root) / "voices.lua", Path(root) / "question.lua"
            voices.write_text(all_in_turn())
            question.write_text(resolve())
            of_many: dict[str, Callable[[], Measured]] = {
                f"file, {WORKING_SET:,} voices in turn": lambda: measure(url, script=voices),
                f"resolve({RESOLVED})": lambda: measure(f"{registry.urls[0]}/v1/resolve", script=question),
            }
            many = rounds({"nginx": measures["nginx"], **of_many})
            for name in of_many:
                share = many[name].per_second / many["nginx"].per_second
                print(row(name, many[name], share))
            reached &= many[f"resolve({RESOLVED})"].per_second >= RESOLVE_GOAL
    return reached


def rounds(measures: dict[str, Callable[[], Measured]]) -> dict[str, Measured]:
    """Measure all in turn, several times. Returns the round with the median rate of each."""
    seen: dict[str, list[Measured]] = {name: [] for name in measures}
    for _ in range(ROUNDS):
        for name, one in measures.items():
            seen[name].append(one())
    return {name: sorted(found, key=lambda one: one.per_second)[ROUNDS // 2] for name, found in seen.items()}


def row(name: str, found: Measured, share: float) -> str:
    return (
        f"| {name} | {found.per_second:,.0f} | {share:.2f} | {found.median_ms:.2f} | {found.p99_ms:.2f} "
        f"| {found.failed} |"
    )


def resolve() -> str:
    """Return wrk's script for resolving many voices."""
    voices = ",".join(f'\\"voice-{number}\\"' for number in range(RESOLVED))
    body = f'{{\\"voices\\": [{voices}], \\"profiles\\": [\\"{PROFILE}\\"]}}'
    return (
        f'wrk.method = "POST"\nwrk.headers["Authorization"] = "Bearer {TOKEN}"\n'
        f'wrk.headers["Content-Type"] = "application/json"\nwrk.body = "{body}"\n'
    )


def all_in_turn() -> str:
    """Return wrk's script for the files of all voices in turn."""
    paths = f'"{ARTIFACT.format("voice-")}"'.replace("voice-", 'voice-" .. number .. "')
    return (
        "local number = 0\n"
        f'wrk.headers["Authorization"] = "Bearer {TOKEN}"\n'
        "function request()\n"
        f"  number = (number + 1) % {WORKING_SET}\n"
        f'  return wrk.format("GET", {paths} .. "/file")\n'
        "end\n"
    )


def acknowledge(folder: Path, processes: int, *, stopped: bool = False) -> None:
    """Print how long deletes take, with so many API processes that have the voices in memory."""
    with RegistryProcesses(folder, apis=processes, environment=ENVIRONMENT) as registry:
        clients = [client_of(url) for url in registry.urls]
        names = [f"voice-{number}" for number in range(4 if stopped else CHANGES)]
        for number, name in enumerate(names):
            register(clients[0], name, number)
            for client in clients:
                client.get(f"{ARTIFACT.format(name)}/file").raise_for_status()
        seconds = []
        for name in names:
            if stopped:
                time.sleep(0.5)  # it has a lease again
                os.kill(registry.apis[-1].pid or 0, signal.SIGSTOP)
            began = time.perf_counter()
            clients[0].delete(f"/v1/audio/voices/{name}").raise_for_status()
            seconds.append(time.perf_counter() - began)
            if stopped:
                os.kill(registry.apis[-1].pid or 0, signal.SIGCONT)
        for client in clients:
            client.close()
    print(f"| {processes}{', one stopped' if stopped else ''} | {of(seconds, 0.5)} | {of(seconds, 0.99)} |")


def of(seconds: Sequence[float], share: float) -> str:
    """Return the time in milliseconds within which this share of the changes was acknowledged."""
    if len(seconds) < 2:
        return f"{1000 * seconds[0]:.1f}"
    return f"{1000 * statistics.quantiles(seconds, n=100, method='inclusive')[round(100 * share) - 1]:.1f}"


def main() -> bool:
    """Print the tables. Returns whether the goals are reached."""
    if missing := missing_tools():
        print(f"not measured: {', '.join(missing)} must be installed")
        return False
    with tempfile.TemporaryDirectory() as folder:
        reached = compare(Path(folder))
    print("\n| API processes | a delete is acknowledged after, median, ms | p99, ms |\n|---|---|---|")
    for processes in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            acknowledge(Path(folder), processes)
    with tempfile.TemporaryDirectory() as folder:
        acknowledge(Path(folder), 2, stopped=True)
    return reached
