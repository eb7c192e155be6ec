"""The three routes that take clips, described so that one test can run over all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from services.registry_api.wire.forms import COMPATIBLE, NATIVE, NATIVE_VERSION, FieldNames
from tests.integration.api.registry import CLIP, Registry
from tests.unit.audio import clips

FIRST_CLIP = clips.wav(1.3)
"""The clip of the first version of a voice that a route adds a version to."""


@dataclass(frozen=True)
class UploadRoute:
    """A route that registers a version from a form."""

    template: str
    names: FieldNames
    created: int
    """The status of an answer that says that a version was added."""

    @property
    def compatible(self) -> bool:
        return self.names is COMPATIBLE

    @property
    def adds(self) -> bool:
        """True if the route only takes further versions of voices."""
        return self.names is NATIVE_VERSION

    def path(self, name: str) -> str:
        return self.template.format(name=name)

    def prepare(self, registry: Registry, name: str, **options: Any) -> int:
        """Register the voice if the route needs one, and return how many versions it then has."""
        if not self.adds:
            return 0
        registry.upload(name, clip=FIRST_CLIP, **options)
        return 1

    def form(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a request for fields by what they are: a field of None is left out."""
        called = {
            "clip": self.names.clip,
            "embedding": self.names.embedding,
            "description": self.names.description,
        }
        named = {} if self.adds else {"name": name}
        given = {"consent": "cons_1", "clip": CLIP, **fields}
        values = {
            **named,
            **{called.get(key, key): value for key, value in given.items() if value is not None},
        }
        files = {
            key: ("clip.wav", value, "audio/wav") for key, value in values.items() if isinstance(value, bytes)
        }
        return {"data": {key: value for key, value in values.items() if key not in files}, "files": files}

    def post(
        self,
        registry: Registry,
        name: str,
        /,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> httpx.Response:
        """Upload, whether or not it succeeds. Fields are named by what they are, such as `clip`."""
        form = self.form(name, fields)
        return registry.client.post(self.path(name), params=params, headers=headers, **form)

    def number(self, response: httpx.Response) -> int:
        """Return the number of the version that a successful answer describes."""
        assert response.status_code in {200, self.created}, response.text
        body = response.json()
        number: int = (body["voice"] if self.compatible else body)["version"]
        return number

    def refusal(self, response: httpx.Response) -> tuple[int, str, str | None]:
        """Return the status that our own routes answer with, the code and the parameter of a refusal."""
        error = response.json()["error"]
        code = error["reason"] if self.compatible else error["code"]
        status = _NATIVE_STATUS.get(code, response.status_code) if self.compatible else response.status_code
        if self.compatible and code in _NATIVE_STATUS:
            assert response.status_code == 400, "vLLM-Omni answers 400 to every upload that it refuses"
        return status, code, error["param"]


_NATIVE_STATUS = {
    "voice_exists": 409,
    "unsupported_audio": 415,
    "embedding_dim_mismatch": 422,
    "idempotency_key_reused": 422,
    "quota_exceeded": 429,
}
"""The statuses of errors that are 400 on vLLM-Omni's route."""

VLLM_OMNIS = UploadRoute("/v1/audio/voices", COMPATIBLE, 200)
VOICES = UploadRoute("/v1/voices", NATIVE, 201)
VERSIONS = UploadRoute("/v1/voices/{name}/versions", NATIVE_VERSION, 201)
UPLOAD_ROUTES = {"vllm-omni's": VLLM_OMNIS, "voices": VOICES, "versions": VERSIONS}
