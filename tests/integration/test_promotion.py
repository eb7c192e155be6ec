"""Tests of `default` while the encoder of a profile changes, on a real store and a real Valkey. The rule by
which it moves is pure, and tested without them.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.registry_api.maintenance.housekeeping import Housekeeping
from tests.opened_registry import OpenedRegistry, folder_settings, id_of

NEXT = "sha256:" + "2" * 64


@pytest.fixture
def registry(tmp_path: Path, valkey: ValkeyServer, redis_client: Redis) -> Iterator[OpenedRegistry]:
    with closing(OpenedRegistry(folder_settings(tmp_path / "bucket"), valkey.url)) as registry:
        yield registry


def look_now(registry: OpenedRegistry, housekeeping: Housekeeping) -> None:
    registry.speakers.agenda.check_within({id_of("wren"): 0})
    housekeeping.turn()


def test_a_worker_with_an_outdated_encoder_promotes_nothing(registry: OpenedRegistry) -> None:
    """Its artifact is outdated as it comes. Engines would lose the version that the current encoder has made
    already. Once that encoder has made the newer version as well, `default` moves.
    """
    housekeeping = registry.housekeeping()
    housekeeping.turn()
    registry.make_ready("wren")
    registry.register("wren", 2)
    [outdated] = registry.worker.take_all("wren")
    registry.worker.announce(NEXT)
    look_now(registry, housekeeping)
    first, second = registry.worker.take_all("wren")
    registry.worker.publish(first)
    registry.worker.publish(outdated)
    assert registry.document("wren").default.number == 1
    look_now(registry, housekeeping)
    assert registry.document("wren").default.number == 1
    registry.worker.publish(second)
    assert registry.document("wren").default.number == 2
    assert registry.document("wren").default.artifact(second.profile, NEXT) is not None
