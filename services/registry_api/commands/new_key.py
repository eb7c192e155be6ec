"""`new-key`: make an API key with all rights, for SPEAKER_AUTH_BOOTSTRAP_KEY_FILE."""

import sys
from pathlib import Path

from services.registry_api.keys.api_keys import new_token
from services.registry_api.keys.key_file import write_new_key


def run(path: Path | None) -> int:
    """Write the key to a new file, or print it if `path` is None.

    Returns the exit status: 1 if the file exists already or cannot be written.
    """
    if path is None:
        print(new_token())
        return 0
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
