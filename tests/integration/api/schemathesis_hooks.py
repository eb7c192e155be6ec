"""Tells schemathesis what it cannot learn from the OpenAPI document alone: valid clips, names and safetensors
files, and short waits. The command in `test_schemathesis` loads this module in its own process.
"""

from contextlib import suppress
from typing import Any

import schemathesis
from hypothesis import strategies as st

from tests.integration.api.registry import CLIP, EMBEDDING, OTHER_CLIP

NAMES = ("Alice", "Bob", "Åsa", "名前", "a b", "x.y-z_1")
"""Names of voices. They are few, so that most requests are about a voice that exists."""
_LONGEST_WAIT_SECONDS = 0.2
_LEFT_OUT = ("If-Match", "If-None-Match", "X-Speaker-Namespace")
"""Headers with which almost every request would be refused, or be about a namespace without voices."""

schemathesis.openapi.format("voice-name", st.sampled_from(NAMES))
schemathesis.openapi.format("voice-reference", st.sampled_from(["1", "2", "default", "latest", "prod"]))
schemathesis.openapi.format("voice-alias", st.sampled_from(["default", "prod"]))
schemathesis.openapi.format("voice-version", st.sampled_from(["1", "2", "30"]))
schemathesis.openapi.format("label-filter", st.sampled_from(["team=blue", "stage=prod"]))
schemathesis.openapi.format("speaker-embedding", st.just(EMBEDDING))
schemathesis.openapi.format("binary", st.sampled_from([CLIP, OTHER_CLIP]))
schemathesis.openapi.media_type("application/vnd.safetensors", st.binary(max_size=100))


@schemathesis.serializer("application/vnd.safetensors")
def as_it_is(_: schemathesis.SerializationContext, value: Any) -> Any:
    return value if isinstance(value, bytes) else str(value).encode()


@schemathesis.hook
def before_load_schema(_: schemathesis.HookContext, raw_schema: dict[str, Any]) -> None:
    """Take away the headers of `_LEFT_OUT` before requests are generated."""
    for operation in (one for path in raw_schema["paths"].values() for one in path.values()):
        if declared := operation.get("parameters"):
            operation["parameters"] = [one for one in declared if one["name"] not in _LEFT_OUT]


@schemathesis.hook
def before_call(_: schemathesis.HookContext, case: schemathesis.Case, **__: Any) -> None:
    """Correct values that no schema can describe. Invalid values stay invalid."""
    body, query = case.body, case.query
    for name, value in body.items() if isinstance(body, dict) else ():
        if isinstance(value, float) and value.is_integer():
            body[name] = int(value)  # JSON Schema counts 1.0 among the integers, the registry does not
    if isinstance(body, dict) and isinstance(body.get("expires_at"), int) and body["expires_at"] >= 0:
        body["expires_at"] = 4_000_000_000
    if isinstance(body, dict) and isinstance(body.get("created_at"), int) and body["created_at"] > 0:
        body["created_at"] = min(body["created_at"], 1_790_000_000)  # a time in the past
    for clip in ("audio", "audio_sample"):
        if isinstance(body, dict) and str(body.get(clip, "")).startswith("@"):
            body[clip] = CLIP
    with suppress(TypeError, ValueError, KeyError):
        if _LONGEST_WAIT_SECONDS < float(query["wait"]) <= 300:
            query["wait"] = str(_LONGEST_WAIT_SECONDS)
