"""Gives Garage the key that the registry signs with, a bucket, and the one the right to the other. Can be
repeated: what is there is left as it is. By its administration API, version 2.

    GARAGE_URL=http://s3:3903 BUCKET=voices KEY_ID=GK… python make_bucket.py

Reads the secrets that `make_secrets.py` made from `GARAGE_SECRETS` and `S3_SECRETS`.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 120.0
REQUEST_SECONDS = 10.0


class Garage:
    """Its administration API."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token

    def get(self, what: str, **query: str) -> dict[str, Any] | None:
        """None where there is no such thing."""
        try:
            return self._ask(f"{what}?{urllib.parse.urlencode(query)}", None)
        except urllib.error.HTTPError as error:
            if error.code in {400, 404}:  # of an unknown key some versions say that the request is bad
                return None
            raise

    def post(self, what: str, **body: Any) -> dict[str, Any]:
        return self._ask(what, json.dumps(body).encode())

    def _ask(self, path: str, body: bytes | None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        url = f"{self._url}/v2/{path}"  # http or https, as the compose file says
        request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:  # noqa: S310
            parsed: dict[str, Any] = json.load(answer)
            return parsed


def make_bucket(garage: Garage, bucket: str, key_id: str, secret: str) -> None:
    """Raises urllib's errors."""
    if garage.get("GetKeyInfo", id=key_id) is None:
        garage.post("ImportKey", accessKeyId=key_id, secretAccessKey=secret, name="registry")
    found = garage.get("GetBucketInfo", globalAlias=bucket) or garage.post("CreateBucket", globalAlias=bucket)
    rights = {"read": True, "write": True, "owner": False}
    garage.post("AllowBucketKey", bucketId=found["id"], accessKeyId=key_id, permissions=rights)


def main() -> None:
    garage_secrets, s3_secrets = Path(os.environ["GARAGE_SECRETS"]), Path(os.environ["S3_SECRETS"])
    garage = Garage(os.environ["GARAGE_URL"], (garage_secrets / "admin_token").read_text())
    key_id, secret = os.environ["KEY_ID"], (s3_secrets / "secret").read_text()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            make_bucket(garage, os.environ["BUCKET"], key_id, secret)
        except OSError as error:  # not there yet, or without a layout yet; HTTPError is one, too
            if time.monotonic() > deadline:
                sys.exit(f"the bucket could not be made within {PATIENCE_SECONDS:g} s: {error}")
            time.sleep(1)
        else:
            print(f"bucket {os.environ['BUCKET']} is there", flush=True)
            return


if __name__ == "__main__":
    main()
