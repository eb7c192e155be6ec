"""`new-key`: make an API key with all rights, for SPEAKER_AUTH_BOOTSTRAP_KEY_FILE."""

import sys
from pathlib import Path

from services.registry_api.keys.api_keys import new_token
from services.registry_api.keys.key_file import write_new_key
from speaker_registry.terminal import discard_output


def run(path: Path | None) -> int:
    """Write the key to a new file, or print it if `path` is None.

    Returns the exit status: 1 if the file exists already or cannot be written, or the key cannot be printed.
    """
    if path is None:
        return _print_key()
    try:
        write_new_key(path)
    except FileExistsError:
        print(f"new-key: {path} exists already and was not changed", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"new-key: {path}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"new-key: wrote {path}", file=sys.stderr)
    return 0


def _print_key() -> int:
    try:
        print(new_token(), flush=True)
    except OSError as error:
        discard_output()
        print(f"new-key: the key could not be printed: {error.strerror}", file=sys.stderr)
        return 1
    return 0
