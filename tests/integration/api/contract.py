"""Checks answers against the OpenAPI document. A status that the document does not name, or a body that does
not match its schema, fails the test that received it. The module knows no route.
"""

import re
from fnmatch import fnmatchcase
from typing import Any

import httpx
from jsonschema import Draft202012Validator


class Contract:
    """Checks answers against one OpenAPI document. `check` is a response hook of an httpx client."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._paths = [(_pattern(path), path) for path in document["paths"]]

    def check(self, response: httpx.Response) -> None:
        operation = self._operation(response.request)
        if operation is None:
            return
        response.read()
        documented = operation["responses"].get(str(response.status_code))
        what = f"{response.request.method} {response.request.url.path}: {response.status_code}"
        assert documented is not None, f"{what} is not documented: {response.text[:300]}"
        if response.content:
            self._check_body(response, documented, what)

    def _check_body(self, response: httpx.Response, documented: dict[str, Any], what: str) -> None:
        content_type = response.headers["content-type"].partition(";")[0]
        if content_type == "application/problem+json":
            return
        known = documented.get("content", {})
        assert any(fnmatchcase(content_type, one) for one in known), (
            f"{what} is not documented as {content_type}"
        )
        if content_type == "application/json":
            schema = documented["content"][content_type].get("schema", {})
            self.validate(response.json(), schema)

    def validate(self, value: Any, schema: dict[str, Any]) -> None:
        """Validate a value. Raises jsonschema's ValidationError."""
        Draft202012Validator({**schema, "components": self._document["components"]}).validate(value)

    def _operation(self, request: httpx.Request) -> dict[str, Any] | None:
        path = request.url.raw_path.partition(b"?")[0].decode()
        for pattern, template in self._paths:
            if pattern.fullmatch(path):
                operations: dict[str, dict[str, Any]] = self._document["paths"][template]
                return operations.get(request.method.lower())
        return None


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)))
