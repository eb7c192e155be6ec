"""Tests of what open pages ask for every few seconds: it is rendered once for many who may see the same."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from services.registry_api.pages.kept import LiveRegions
from tests.encoders import come_with
from tests.integration.api.access import BOOTSTRAP, CLOSED, bearer, id_of, key
from tests.integration.api.conftest import empty
from tests.integration.api.pages import TOKEN, Visitor
from tests.integration.api.registry import PROFILE, Registry
from tests.integration.api.worker import FINGERPRINT

PATHS = ("", "/jobs", "/profiles")
REGION = {"HX-Request": "true", "HX-Target": "live"}


class Clock:
    """A clock that stands still until a test advances it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, valkey: Any, decoder: Any) -> Iterator[Registry]:
    """A registry that requires keys."""
    with Registry(tmp_path_factory.mktemp("live"), empty(valkey, 12), decoder, access=CLOSED) as registry:
        yield registry


@pytest.fixture
def clock(closed: Registry) -> Clock:
    """The clock by which the regions of this test are kept."""
    clock = Clock()
    state = closed.app.state
    state.parts = replace(state.parts, live_regions=LiveRegions(clock))
    return clock


@pytest.mark.parametrize("path", PATHS)
def test_a_page_that_asks_for_its_region_gets_nothing_else(closed: Registry, clock: Clock, path: str):
    """The rest of the page stands on the screen already."""
    with Visitor(closed, str(BOOTSTRAP)) as visitor:
        whole, region = visitor.get(path), visitor.get(path, headers=REGION)
    assert region.text.split(maxsplit=2)[1] == 'id="live"'
    assert "<html" not in region.text
    assert f'hx-get="/dashboard{path}"' in region.text
    assert f'hx-get="/dashboard{path}"' in whole.text
    assert region.headers["cache-control"] == "no-store"


def test_the_region_of_the_profiles_shows_their_history(closed: Registry, clock: Clock):
    """A page that is fetched again must show what it showed before."""
    come_with(closed.opened.profile_records, PROFILE, FINGERPRINT)
    with Visitor(closed, str(BOOTSTRAP)) as visitor:
        region = visitor.get("/profiles", headers=REGION)
    assert region.status_code == 200
    assert f"History of {PROFILE}" in region.text
    assert "came with the first worker" in region.text


def test_a_region_is_rendered_once_for_many_and_soon_again(closed: Registry, clock: Clock, name: str):
    """Fifty open pages must not cost fifty times as much as one. They are two seconds behind at most."""
    with Visitor(closed, str(BOOTSTRAP)) as one, Visitor(closed, str(BOOTSTRAP)) as other:
        assert name not in one.get("/jobs", headers=REGION).text
        closed.upload(name, headers=bearer(BOOTSTRAP))
        assert name not in other.get("/jobs", headers=REGION).text
        assert name in one.get("/jobs").text, "a page that is loaded is always up to date"
        clock.now += 2.1
        assert name in other.get("/jobs", headers=REGION).text


def test_a_kept_region_is_sent_before_the_request_is_routed(
    closed: Registry, clock: Clock, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Routing and the checks of its parameters take most of the time. The request counts all the same."""
    with Visitor(closed, key(closed, "jobs:read", name=name)) as visitor:
        visitor.get("/jobs", headers=REGION)
        monkeypatch.setattr(closed.app.router, "app", None)
        kept = [visitor.get("/jobs", headers=REGION) for _ in range(2)]
    assert [one.status_code for one in kept] == [200, 200]
    first, second = (int(one.headers["ratelimit-remaining"]) for one in kept)
    assert second == first - 1


def test_a_kept_region_is_not_for_a_key_that_was_revoked(closed: Registry, clock: Clock, name: str):
    """The page is led to the page at which people sign in, and from there back."""
    revoked, other = key(closed, "jobs:read", name=name), key(closed, "jobs:read")
    with Visitor(closed, other) as one, Visitor(closed, revoked) as ended:
        assert one.get("/jobs", headers=REGION).status_code == 200
        closed.client.delete(f"/v1/keys/{id_of(revoked)}", headers=bearer(BOOTSTRAP)).raise_for_status()
        page = {"HX-Current-URL": f"{closed.url}/dashboard/jobs?state=failed#live"}
        answer = ended.get("/jobs", headers={**REGION, **page})
        elsewhere = ended.get(
            "/jobs", headers={**REGION, "HX-Current-URL": "https://evil.example/dashboard/jobs"}
        )
    following = "/dashboard/login?ended=yes&next=%2Fdashboard%2Fjobs%3Fstate%3Dfailed"
    assert (answer.status_code, answer.headers["hx-redirect"]) == (401, following)
    assert elsewhere.headers["hx-redirect"] == "/dashboard/login?ended=yes"


def test_forms_in_a_region_carry_the_token_of_each_session(closed: Registry, clock: Clock, name: str):
    """A form with the token of somebody else would be refused, and would give that token away."""
    job = closed.upload(name, headers=bearer(BOOTSTRAP))["job_id"]
    with Visitor(closed, str(BOOTSTRAP)) as one, Visitor(closed, str(BOOTSTRAP)) as other:
        for visitor in (one, other):
            found = set(TOKEN.findall(visitor.get("/jobs", headers=REGION).text))
            assert found == {visitor.token()}
        assert one.token() != other.token()
        other.post(f"/jobs/{job}/cancel")
    assert closed.client.get(f"/v1/jobs/{job}", headers=bearer(BOOTSTRAP)).json()["state"] == "canceled"


def test_a_region_is_for_those_who_may_see_the_same(closed: Registry, clock: Clock, name: str):
    """What was rendered for one is given neither to another namespace nor to a key with other scopes."""
    closed.upload(name, headers=bearer(BOOTSTRAP))
    with Visitor(closed, str(BOOTSTRAP)) as operator:
        assert name in operator.get("/jobs", headers=REGION).text
    with Visitor(closed, key(closed, namespace="others")) as stranger:
        assert name not in stranger.get("/jobs", headers=REGION).text
    with Visitor(closed, key(closed, "jobs:read")) as reader:
        region = reader.get("/jobs", headers=REGION).text
        assert name in region
        assert "/cancel" not in region
    with Visitor(closed, key(closed, "voices:read")) as other:
        assert other.get("/jobs", headers=REGION).status_code == 403
