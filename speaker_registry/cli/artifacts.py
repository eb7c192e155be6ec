"""The commands for artifacts: `fetch`, `put` and `wait`."""

import argparse
from typing import TYPE_CHECKING

from speaker_registry.cli.command import (
    UNTRAINED,
    Command,
    Output,
    about_weights,
    add_output,
    add_speaker,
    add_timeout,
    seconds,
    warn,
)
from speaker_registry.cli.files import check_output, deliver, read_artifact
from speaker_registry.cli.progress import wait_ready
from speaker_registry.cli.text import fetched, readiness_text
from speaker_registry.terminal import printable

if TYPE_CHECKING:
    from speaker_registry import RegistryClient


def fetch(client: "RegistryClient", arguments: argparse.Namespace) -> Output | None:
    check_output(arguments, "an artifact")
    file = client.download(arguments.speaker, arguments.profile, wait=arguments.wait)
    deliver(arguments, file.data)
    if file.artifact.manifest.untrained:
        warn(UNTRAINED, as_json=arguments.json)
    if file.artifact.manifest.custom_weights:
        warn("made with custom weights, not with the published ones", as_json=arguments.json)
    return None if arguments.output == "-" else fetched(arguments.output, file)


def put(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    data = read_artifact(arguments.file)
    made = client.put(arguments.speaker, arguments.profile, data, fingerprint=arguments.fingerprint)
    text = (
        f"{printable(made.voice)}@{made.version} is {made.state} for {printable(made.profile)}: {made.digest}"
    )
    return Output(made.model_dump(mode="json"), text, warnings=about_weights([made]))


def wait(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    ready = wait_ready(client, arguments.speaker, arguments.profile, arguments)
    return Output(ready.model_dump(mode="json"), readiness_text(ready), warnings=about_weights([ready]))


def _add_fetch(command: argparse.ArgumentParser) -> None:
    command.add_argument("--profile", metavar="P", required=True)
    add_output(command)
    command.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=0.0,
        help="wait for an artifact that is not ready (default: 0)",
    )


def _add_put(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", help="safetensors file, or - for standard input")
    command.add_argument("--profile", metavar="P", required=True)
    command.add_argument(
        "--fingerprint",
        metavar="SHA256",
        help="fingerprint of what made the artifact, if the file has no manifest with it",
    )


def _add_wait(command: argparse.ArgumentParser) -> None:
    command.add_argument("speaker", metavar="NAME[@REF]", help="voice; without REF, its default version")
    command.add_argument(
        "--profile", metavar="P", help="profile to wait for (default: all required profiles)"
    )


COMMANDS = (
    Command("fetch", fetch, "Write an artifact to a file.", [add_speaker, _add_fetch]),
    Command("put", put, "Upload an artifact that was made elsewhere.", [add_speaker, _add_put]),
    Command("wait", wait, "Wait until a version is ready.", [_add_wait, add_timeout]),
)
