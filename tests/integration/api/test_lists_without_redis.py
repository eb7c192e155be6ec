"""Tests of lists over HTTP while the view is away: one page at a time, and within the bucket's slots.
Measured with 300 voices in a folder and `limit=20`: 602 calls to the store and 0.6 s when all voices of all
namespaces were read for each page; 43 calls and 0.1 s since.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from services.shared.registry import pages
from services.shared.view.away import ViewAway
from tests.integration.api.conftest import Start
from tests.integration.api.registry import EMBEDDING, Registry
from tests.integration.api.test_kept_waiting import Standstill, asking
from tests.queue_workers import wait_until

AT_STORE = 2
NAMES = [f"voice-{number}" for number in range(5)] + ["Zoë", "ann marie"]
PATHS = ["/v1/voices", "/v1/audio/voices"]


@pytest.fixture
def away(start: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry with some voices, whose view has just become unusable."""
    registry = start(max_at_store=AT_STORE)
    for name in NAMES:
        registry.upload(name, clip=None, speaker_embedding=EMBEDDING)

    def refuse(*_: object) -> Any:
        raise ViewAway

    monkeypatch.setattr(registry.opened.generation, "read", refuse)
    return registry


@pytest.mark.parametrize("path", PATHS)
def test_pages_lead_to_every_voice(away: Registry, path: str):
    """Pages lead to every voice. A client that follows the cursors need not know where
    the pages come from.
    """
    told, page = [], {"has_more": True, "last_id": ""}
    while page["has_more"]:
        page = away.client.get(path, params={"limit": 2, "after": page["last_id"]}).json()
        told += [one["name"] for one in page["data"]]
    assert sorted(told) == sorted(NAMES)


def test_a_list_of_all_is_refused_where_that_is_more_than_a_page(
    away: Registry, monkeypatch: pytest.MonkeyPatch
):
    """A list of all voices is refused where that is more than a page, because one request would read each of
    them from the bucket.
    """
    whole = away.client.get("/v1/audio/voices").json()
    assert sorted(one["name"] for one in whole["data"]) == sorted(NAMES)
    monkeypatch.setattr(pages, "MAX_PAGE_OF_BUCKET", len(NAMES) - 1)
    refused = away.client.get("/v1/audio/voices")
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) >= 1
    assert "pass 'limit'" in refused.json()["error"]["message"]


def test_lists_take_no_more_than_the_slots_of_the_bucket(away: Registry, monkeypatch: pytest.MonkeyPatch):
    """Lists use no more than the slots of the bucket. However many lists are requested, the bucket serves few
    of them at a time, and the others wait.
    """
    hanging = Standstill(away.opened.store.list)
    monkeypatch.setattr(away.opened.store, "list", hanging)
    with asking(*[lambda path=path: away.client.get(path) for path in PATHS * 3]) as answers:
        wait_until(lambda: hanging.calls == AT_STORE)
        assert away.client.get("/healthz").status_code == 200
        assert hanging.calls == AT_STORE
        hanging.go_on()
        assert {answer.result().status_code for answer in answers} == {200}
