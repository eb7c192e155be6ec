"""`python -m services.embedded run|demo`: the registry on one machine. See `make run` and `make demo`."""

import signal
import sys

from pydantic import ValidationError

from services.embedded.demo import demo
from services.embedded.settings import EmbeddedSettings
from services.embedded.supervisor import EmbeddedRegistry, StartFailed
from services.shared.logs import configure_logs
from services.shared.valkey import ValkeyError


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    configure_logs("WARNING")
    commands = {"run": run, "demo": demo}
    if len(arguments) != 1 or arguments[0] not in commands:
        print("usage: python -m services.embedded run|demo", file=sys.stderr)
        return 2
    try:
        return commands[arguments[0]](EmbeddedSettings())
    except ValidationError as error:
        for fault in error.errors():
            print(f"{'.'.join(map(str, fault['loc'])).upper()}: {fault['msg']}", file=sys.stderr)
        return 2
    except (StartFailed, ValkeyError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


def run(settings: EmbeddedSettings) -> int:
    """Keep a registry running until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"starting (profiles: {settings.profiles}; weights: {settings.weights}) …", flush=True)
    registry = EmbeddedRegistry(settings)
    try:
        with registry:
            print(_welcome(registry, settings), flush=True)
            registry.watch()
    except KeyboardInterrupt:
        print("\nstopped; the data stays", flush=True)
    return 0


def _welcome(registry: EmbeddedRegistry, settings: EmbeddedSettings) -> str:
    url, data = registry.url, settings.data.absolute()
    profile = settings.profiles.partition(",")[0].strip()
    warning = (
        "\nThe weights are UNTRAINED (random): all works, the voices are useless. For real ones set WEIGHTS."
        if settings.weights == "untrained"
        else ""
    )
    return f"""
The speaker registry is up: {url}     (API documentation: {url}/docs)
Data: {data}  (bucket/ is the truth, redis/ can be rebuilt from it){warning}

Try it:
  curl -F name=alice -F consent=cons_1 -F audio_sample=@examples/clips/wren.flac {url}/v1/audio/voices
  curl -X POST {url}/v1/audio/voices/alice/cache
  curl -o alice.safetensors {url}/v1/voices/alice/versions/default/artifacts/{profile}/file

Ctrl-C stops it."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
