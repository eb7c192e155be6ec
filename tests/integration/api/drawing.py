"""Draws the pictures of clips, as a worker does."""

from collections.abc import Callable, Mapping
from contextlib import closing

from services.extractor_worker.features.pictures import draw
from services.extractor_worker.jobs.batch_worker import BatchWorker
from services.extractor_worker.pipeline.drawing import Drawing
from services.shared.audio import AudioDecoder, ReferenceAudio
from services.shared.configuration.worker import WorkerSettings
from services.shared.model.pictures import Picture
from services.shared.queue.dispatch import DRAW
from services.shared.queue.rq_jobs import PICTURES_QUEUE
from services.shared.registry.opening import open_queue_connection
from tests.integration.api.registry import Registry

Drawn = Mapping[Picture, bytes]


def draw_all(registry: Registry, draw: Callable[[ReferenceAudio], Drawn] = draw) -> bool:
    """Run a worker until nothing is left to draw. Returns whether there was anything."""
    opened, decoder = registry.opened, registry.app.state.parts.services.decoder
    assert isinstance(decoder, AudioDecoder)
    with closing(open_queue_connection(opened.settings)) as connection:
        drawing = Drawing(opened.store, opened.speakers, opened.blobs, decoder.decode, draw)
        settings = WorkerSettings(poll_seconds=0.1)
        worker = BatchWorker([PICTURES_QUEUE], {DRAW: drawing}, connection=connection, settings=settings)
        return worker.work(burst=True)
