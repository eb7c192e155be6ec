"""Keeps campaigns: each change is a fact in the bucket, of which Redis holds a copy. Their progress is in
Redis alone. Knows no rules.

The copy belongs to one index, so it is read again from the bucket after a loss of Redis.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import structlog
from pydantic import ValidationError
from redis.exceptions import LockError
from redis.lock import Lock

from services.registry_api.campaigns.campaign import Campaign, Progress
from services.shared.bucket.facts import commit, list_several_times, read_record
from services.shared.bucket.keys import CampaignKey, announcements_folder, parse_key
from services.shared.bucket.store import ObjectUnavailable
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.registry.parts import RegistryParts
from speaker_registry.errors import CampaignNotFound, Unavailable

log = structlog.get_logger()

_LOADED = ""
"""A field of the copy that says that every campaign of the bucket is in it."""
_COPY_SECONDS = 3600
"""The bucket is read again after this long, and what an older index left behind is gone."""
_LOCK_SECONDS = 15.0
_WAIT_SECONDS = 10.0
"""An operator's change waits for so long until the runner has ended its turn."""


class CampaignBook:
    """Reads and writes campaigns. Methods raise `Unavailable` while bucket, Redis or the index is away."""

    def __init__(self, parts: RegistryParts) -> None:
        self._store = parts.store
        self._index = parts.index
        self._catalogue = parts.catalogue
        self._clock = parts.clock

    def all(self) -> list[Campaign]:
        """Return all campaigns, the newest first."""
        epoch, copies = self._copies()
        return _newest_first(copies if _LOADED in copies else self._load(epoch))

    def copied(self) -> list[Campaign]:
        """Return the campaigns as Redis knows them, the newest first. The bucket is not read.

        There are none until `all` has copied them.
        """
        _, copies = self._copies()
        return _newest_first(copies) if _LOADED in copies else []

    def of_profile(self, profile: str) -> list[Campaign]:
        """Return the campaigns of a profile, the newest first. Raises `ProfileUnknown`."""
        self._catalogue.get(profile)
        return [one for one in self.all() if one.profile == profile]

    def get(self, profile: str, campaign_id: str) -> Campaign:
        """Return a campaign. Raises `ProfileUnknown`, `CampaignNotFound`."""
        for one in self.of_profile(profile):
            if one.id == campaign_id:
                return one
        raise CampaignNotFound(
            f"There is no campaign {campaign_id[:80]!a} of profile '{profile}'. GET "
            f"/v1/profiles/{profile}/campaigns lists them.",
            param="campaign_id",
        )

    def write(self, campaign: Campaign) -> Campaign:
        """Store a campaign after a change, and return it. Hold the lock."""
        key = CampaignKey(campaign.profile, campaign.id, campaign.step, self._clock.new_id())
        commit(self._store, key, campaign.to_json().encode())
        with unavailable_without_redis():
            self._index.redis.hset(_copies_key(self._index.epoch), campaign.id, campaign.to_json())
        log.info("campaign.changed", campaign=campaign.id, profile=campaign.profile, state=campaign.state)
        return campaign

    def progress(self, campaigns: Iterable[Campaign]) -> dict[str, Progress]:
        """Return the progress of campaigns by their ids. One that was lost is as at the beginning."""
        campaigns = list(campaigns)
        results = {one.id: one.result for one in campaigns if one.result is not None}
        ids = [one.id for one in campaigns if one.result is None]
        if not ids:
            return results
        _, (texts,) = self._index.read_epoch(
            lambda pipeline, epoch: pipeline.hmget(_progress_key(epoch), ids)
        )
        kept = {
            campaign_id: Progress.model_validate_json(text) if text else Progress()
            for campaign_id, text in zip(ids, texts, strict=True)
        }
        return results | kept

    def write_progress(self, campaign: Campaign, progress: Progress) -> None:
        with unavailable_without_redis():
            self._index.redis.hset(_progress_key(self._index.epoch), campaign.id, progress.to_json())

    @contextmanager
    def lock(self, *, wait: bool) -> Iterator[Lock]:
        """Hold the lock under which campaigns are changed. Losing it midway is harmless.

        Raises:
            Unavailable: another process holds it, and `wait` is false or it did not end in time.
        """
        lock = self._index.ungated.lock(
            f"sr:lock:campaigns:{self._index.stamp}",
            timeout=_LOCK_SECONDS,
            sleep=0.02,
            blocking=wait,
            blocking_timeout=_WAIT_SECONDS if wait else None,
            thread_local=False,
        )
        with unavailable_without_redis():
            if not lock.acquire():
                raise Unavailable("Another process is changing the campaigns.", retry_after_seconds=1)
        try:
            yield lock
        finally:
            with suppress(LockError, Unavailable), unavailable_without_redis():
                lock.release()

    def _copies(self) -> tuple[int, dict[str, str]]:
        epoch, (copies,) = self._index.read_epoch(
            lambda pipeline, epoch: pipeline.hgetall(_copies_key(epoch))
        )
        return epoch, copies

    def _load(self, epoch: int) -> dict[str, str]:
        """Copy all campaigns from the bucket to Redis, and return the copies.

        A copy that is there already is newer, because it was written after its fact.
        """
        found = {one.id: one.to_json() for profile in self._catalogue.names for one in self._stored(profile)}
        with unavailable_without_redis():
            pipeline = self._index.redis.pipeline(transaction=True)
            for name, text in {**found, _LOADED: "1"}.items():
                pipeline.hsetnx(_copies_key(epoch), name, text)
            pipeline.expire(_copies_key(epoch), _COPY_SECONDS)
            pipeline.hgetall(_copies_key(epoch))
            return dict(pipeline.execute()[-1])

    def _stored(self, profile: str) -> Iterator[Campaign]:
        """Yield the campaigns of a profile in the bucket, each after its last change that can be read."""
        keys: dict[str, list[tuple[int, str]]] = {}
        objects = {
            one.key: one for one in list_several_times(self._store, announcements_folder(profile), 2).objects
        }
        for text in objects:
            if isinstance(key := parse_key(text), CampaignKey):
                keys.setdefault(key.id, []).append((key.step, text))
        for changes in keys.values():
            for _, text in sorted(changes, reverse=True):
                try:
                    body = read_record(self._store, objects[text])
                    if body is not None:
                        yield Campaign.model_validate_json(body)
                        break
                except (ValidationError, ValueError, ObjectUnavailable) as error:
                    log.error("campaign.damaged", key=text, error=str(error))


def _newest_first(copies: Mapping[str, str]) -> list[Campaign]:
    found = [Campaign.model_validate_json(text) for name, text in copies.items() if name != _LOADED]
    return sorted(found, key=lambda one: one.id, reverse=True)


def _copies_key(epoch: int) -> str:
    return f"sr:campaigns:{epoch}"


def _progress_key(epoch: int) -> str:
    return f"sr:campaign_progress:{epoch}"
