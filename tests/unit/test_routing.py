"""Tests of how a request finds its router, on applications without a registry."""

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.routing import Match
from starlette.types import Scope

from services.registry_api.protocol.routing import Router


def answering(prefix: str, path: str) -> Router:
    router = Router(prefix=prefix)

    @router.get(path)
    def answer() -> str:
        return prefix + path

    return router


@pytest.mark.parametrize("root_path", ["", "/behind"])
def test_every_path_finds_its_route_behind_routers_that_are_skipped(root_path: str):
    app = FastAPI()
    routes = [
        ("/v1/voices/{name}/aliases", ""),
        ("/v1/voices", ""),
        ("", "/healthz"),
        ("/dashboard", "/jobs"),
    ]
    for prefix, path in routes:
        app.include_router(answering(prefix, path))
    with TestClient(app, root_path=root_path) as client:
        for path in ("/v1/voices/ann/aliases", "/v1/voices", "/healthz", "/dashboard/jobs"):
            assert client.get(path).status_code == 200, path
        assert client.get("/v1/other").status_code == 404


def test_a_path_is_compared_with_no_route_of_a_router_that_begins_differently(
    monkeypatch: pytest.MonkeyPatch,
):
    """Comparing each path with every route took almost half of the time of a request for a page."""
    app, compared = FastAPI(), list[str]()
    for prefix in ("/v1/voices/{name}", "/v1/jobs", "/dashboard"):
        app.include_router(answering(prefix, "/list"))
    matches = APIRoute.matches

    def noting(route: APIRoute, scope: Scope) -> tuple[Match, Scope]:
        compared.append(route.path)
        return matches(route, scope)

    monkeypatch.setattr(APIRoute, "matches", noting)
    with TestClient(app) as client:
        assert client.get("/dashboard/list").status_code == 200
    assert {path for path in compared if path.endswith("/list")} == {"/dashboard/list"}
