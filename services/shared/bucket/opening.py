"""Opens the store that the settings name. No other module needs to know which kind of store it is."""

from services.shared.bucket.bucket_store import BucketStore
from services.shared.bucket.connection import (
    REQUEST_SECONDS,
    RETRY_SECONDS,
    AnyKeys,
    BucketClock,
    StoreUnfit,
    connect,
    describe,
)
from services.shared.bucket.folder_store import FolderStore
from services.shared.bucket.store import ObjectStore
from services.shared.bucket.store_calls import reason
from services.shared.configuration.store import StoreSettings

CHECK_SECONDS = 3.0
"""The time limit of a readiness check, which must answer before its caller gives up."""


def open_store(settings: StoreSettings) -> ObjectStore:
    """Open the store that the settings name. A local folder is created, but a bucket is not contacted yet.

    Raises:
        StoreUnfit: the folder cannot be created.
    """
    if settings.folder:
        try:
            return FolderStore(settings.folder)
        except OSError as error:
            raise StoreUnfit(describe(settings, reason(error))) from None
    client = connect(settings, request_seconds=REQUEST_SECONDS, retry_seconds=RETRY_SECONDS)
    without_retries = connect(settings, request_seconds=CHECK_SECONDS, retry_seconds=0)
    return BucketStore(
        client,
        for_swaps=connect(settings, request_seconds=REQUEST_SECONDS, retry_seconds=0),
        without_retries=without_retries,
        clock=BucketClock(client, settings),
        any_keys=AnyKeys(settings),
    )
