"""The command `make demo`: shows a voice from upload to deletion, on a temporary registry and through the
SDK.
"""

import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from services.embedded.settings import EmbeddedSettings
from services.embedded.supervisor import EmbeddedRegistry
from speaker_registry import Artifact, Readiness, Registration, RegistryClient, VoiceVersion

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
CONSENT = "synthesised voice, see examples/clips/README.md"


def demo(settings: EmbeddedSettings) -> int:
    """Run the demo and print how long each step took. Returns the exit status."""
    folder = Path(tempfile.mkdtemp(prefix="speaker-registry-demo-"))
    settings = settings.model_copy(update={"data": folder, "port": 0})
    registry = EmbeddedRegistry(settings, show=logging.WARNING)
    try:
        with step(f"start API, worker (weights: {settings.weights}), Valkey and bucket"):
            registry.__enter__()
        profile = settings.profile_names[0]
        with RegistryClient(registry.url, api_key=registry.api_key) as client:
            _tour(client, profile)
        with step("stop everything"):
            registry.stop()
    finally:
        registry.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print("\nNext: `make run` keeps a registry running; docs/usage.md has curl and SDK examples.")
    return 0


def _tour(client: RegistryClient, profile: str) -> None:
    with step("register 'Wren' with a spoken clip and its transcript"):
        registration = _register(client, "Wren", "wren")
    with step(f"wait until {registration.reference} is ready for {profile}"), progress_bar() as on_progress:
        client.wait_ready(registration.reference, on_progress=on_progress)
    with step(f"fetch {registration.reference} by name and version"):
        artifact = client.fetch(registration.reference, profile)
    _show(artifact)
    with step("fetch it again: from the cache, asking only whether it has changed"):
        client.fetch(registration.reference, profile)
    with step("and again, within a minute: from memory, without asking"):
        client.fetch(registration.reference, profile, max_age=60)
    with step("register 'wren' again with another clip"):
        second = _register(client, "wren", "rowan")
    with step(f"wait until {second.reference} is ready"), progress_bar() as on_progress:
        client.wait_ready(second.reference, on_progress=on_progress)
    _show_versions(client, list(client.versions("wren")))
    with step("delete the voice"):
        client.delete("wren")
    assert not list(client.list()), "the voice is still listed"


def _register(client: RegistryClient, name: str, clip: str) -> Registration:
    transcript = (CLIPS / f"{clip}.txt").read_text().strip()
    return client.register(name, CLIPS / f"{clip}.flac", consent=CONSENT, ref_text=transcript)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print a description of a step and how long it took."""
    started = time.perf_counter()
    yield
    seconds = time.perf_counter() - started
    shown = f"{seconds:6.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:5.2f} ms"
    print(f"{shown:>9}  {what}", flush=True)


@contextmanager
def progress_bar() -> Iterator[Callable[[Readiness], None]]:
    """Show a progress bar if standard error is a terminal."""
    with tqdm(total=1, bar_format="           {l_bar}{bar:30}| {postfix}", leave=False, disable=None) as bar:

        def on_progress(seen: Readiness) -> None:
            if seen.job is not None:
                bar.total = max(1, seen.job.progress.total)
                bar.n = seen.job.progress.done
                bar.set_postfix_str(seen.job.progress.stage)

        yield on_progress


def _show(artifact: Artifact) -> None:
    for name, tensor in sorted(artifact.tensors.items()):
        print(f"           {name}: {tensor.dtype} {list(tensor.shape)}")
    manifest = artifact.manifest.model_dump(mode="json", exclude={"extractor"})
    for line in json.dumps(manifest, ensure_ascii=False, indent=2).splitlines():
        print(f"           {line}")
    if artifact.manifest.untrained:
        print("           (made with UNTRAINED weights: real code, real shapes, a useless voice)")


def _show_versions(client: RegistryClient, versions: list[VoiceVersion]) -> None:
    current = client.get("wren").version
    for version in versions:
        seconds = version.audio.seconds if version.audio else 0.0
        mark = "  <- what 'wren' stands for now" if version.version == current else ""
        print(f"           wren@{version.version}: {version.state}, {seconds:.2f} s of audio{mark}")
