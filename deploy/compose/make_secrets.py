"""Makes what must be secret, once: the first service that `docker compose up` runs. A volume for each holder.

    redis/password                          Valkey, API, workers
    valkey/operator, valkey/valkey.conf     Valkey
    s3/secret, s3/identities.json           API, workers, SeaweedFS
    bootstrap/key                           API: a key with all rights, to make others with
    grafana/password                        Grafana

Every file is readable by uid 10001 alone. What is there is left as it is. Also gives that uid the volumes in
which others keep their data, for not every image brings a folder of its own for them.

    KEY_ID=registry python make_secrets.py SECRETS [FOLDER…]

`KEY_ID` goes with the S3 secret and is none itself.
"""

import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from services.registry_api.keys.api_keys import new_token
from services.shared.view.redis_access import OPERATOR_RIGHTS, RIGHTS

UID = 10001

Made = Mapping[str, str]
Make = Callable[[Made], str]


def _valkey_conf(made: Made) -> str:
    return (
        f"user default reset on >{made['redis/password']} {RIGHTS}\n"
        f"user operator reset on >{made['valkey/operator']} {OPERATOR_RIGHTS}\n"
    )


def _identities(made: Made) -> str:
    """As SeaweedFS reads them."""
    credentials = {"accessKey": os.environ["KEY_ID"], "secretKey": made["s3/secret"]}
    return json.dumps(
        {"identities": [{"name": "registry", "credentials": [credentials], "actions": ["Admin"]}]}
    )


FILES: dict[str, Make] = {
    "redis/password": lambda _: secrets.token_urlsafe(32),
    "valkey/operator": lambda _: secrets.token_urlsafe(32),
    "valkey/valkey.conf": _valkey_conf,
    "s3/secret": lambda _: secrets.token_hex(32),
    "s3/identities.json": _identities,
    "bootstrap/key": lambda _: str(new_token()),
    "grafana/password": lambda _: secrets.token_urlsafe(24),
}
"""In the order in which they are made: some hold others."""


def make_secrets(folder: Path) -> list[str]:
    """Returns what was missing and has been made."""
    made: dict[str, str] = {}
    new = []
    for name, make in FILES.items():
        file = folder / name
        if not file.exists():
            _write(file, make(made))
            new.append(name)
        made[name] = file.read_text()
    return new


def _write(file: Path, text: str) -> None:
    """Whole or not at all: whoever stops us half-way must not leave half a secret."""
    file.parent.mkdir(parents=True, exist_ok=True)
    half = file.with_name(f".{file.name}.new")
    half.unlink(missing_ok=True)
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as writer:
        writer.write(text)
        writer.flush()
        os.fsync(writer.fileno())
    _give_away(half)
    half.rename(file)
    _give_away(file.parent)


def _give_away(path: Path) -> None:
    with suppress(PermissionError):  # outside a container, as in tests, we may be anybody
        os.chown(path, UID, UID)


def main(folder: str, *owned: str) -> None:
    for path in owned:
        _give_away(Path(path))
    new = make_secrets(Path(folder))
    print(f"made: {', '.join(new) or 'nothing, all is there'}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
