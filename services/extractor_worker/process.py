"""One worker process, whatever its extractors are: loads and warms them, says so, takes jobs, leaves in good
order. Knows no encoder and imports no torch: `__main__` brings both.
"""

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping

import structlog

from services.extractor_worker.batch_worker import BatchWorker
from services.extractor_worker.extraction import Extraction, Station
from services.extractor_worker.extractor import Extractor
from services.shared.dispatch import EXTRACT
from services.shared.opening import open_queue_connection, open_registrar
from services.shared.profiles import Profile
from services.shared.publication import Maker, Publisher
from services.shared.queue import queue_name
from services.shared.settings import (
    ExtractorSettings,
    RegistrySettings,
    StoreSettings,
    WorkerSettings,
)
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

EXIT_OUTDATED = 3
"""Another worker announced a newer fingerprint: what we make would not be served."""

_PAUSE_SECONDS = 1.0


class WorkerProcess:
    """Reads the settings of the environment at once; `run` does the rest.

    Args:
        load: what gives a profile's extractor.

    Raises:
        ValidationError: of the settings. ProfileUnknown, StoreUnfit, Unavailable: of profiles and bucket.
    """

    def __init__(self, load: Callable[[Profile, ExtractorSettings], Extractor]) -> None:
        self._load_extractor = load
        self._settings = ExtractorSettings()
        self._worker_settings = WorkerSettings()
        self._registry = RegistrySettings()
        self._registrar = open_registrar(StoreSettings(), self._registry)
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._outdated = False

    def run(self) -> int:
        """Work until told to stop. Returns the exit status.

        A signal that comes before the first job can be taken ends the process as it is: there is nothing to
        finish, and loading may take minutes.
        """
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stations = {name: self._load(name) for name in self._settings.profiles or self._registry.profiles}
        fingerprints = {name: station.maker.fingerprint for name, station in stations.items()}
        for name, station in stations.items():
            self._announce(name, station.maker)
        extraction = Extraction(Publisher(self._registrar), stations, threads=self._settings.threads)
        worker = self._worker(extraction, fingerprints)
        extraction.on_progress, extraction.stopping = worker.progress, lambda: worker.stopping
        log.info("worker.ready", worker=self._name, profiles=sorted(stations))
        try:
            worker.work()
        finally:
            extraction.close()
            self._leave(fingerprints)
        return EXIT_OUTDATED if self._outdated else 0

    def _load(self, name: str) -> Station:
        """Load a profile's encoders and run them once: the first real clip is to be as fast as the tenth."""
        profile = self._registrar.catalogue.get(name)
        started = time.monotonic()
        log.info("worker.loads", profile=name)
        extractor = self._load_extractor(profile, self._settings)
        _warm_up(extractor)
        fingerprint = extractor.fingerprint
        log.info(
            "extractor.warm",
            profile=name,
            fingerprint=fingerprint.digest,
            untrained=fingerprint.untrained,
            seconds=round(time.monotonic() - started, 2),
        )
        maker = Maker(
            profile=profile,
            fingerprint=fingerprint.digest,
            extractor=fingerprint.facts,
            untrained=fingerprint.untrained,
            worker=self._name,
        )
        return Station(maker, extractor)

    def _announce(self, name: str, maker: Maker) -> None:
        """Make what we make current. While Redis is away: wait, for loading again would take longer."""
        while True:
            try:
                changed = self._registrar.announcements.announce(
                    name,
                    maker.fingerprint,
                    maker.extractor,
                    untrained=maker.untrained,
                    roll_back=self._settings.roll_back,
                )
            except Unavailable as error:
                log.warning("worker.waits", reason=error.message)
                time.sleep(_PAUSE_SECONDS)
            else:
                if changed:
                    log.info("profile.updated", profile=name, fingerprint=maker.fingerprint)
                return

    def _worker(self, extraction: Extraction, fingerprints: Mapping[str, str]) -> BatchWorker:
        def on_beat() -> None:
            self._registrar.announcements.beat(self._name, fingerprints)
            self._stop_if_outdated(fingerprints)

        return BatchWorker(
            [queue_name(name) for name in fingerprints],
            {EXTRACT: extraction},
            connection=open_queue_connection(self._registry),
            settings=self._worker_settings,
            name=self._name,
            on_beat=on_beat,
        )

    def _stop_if_outdated(self, fingerprints: Mapping[str, str]) -> None:
        for name, fingerprint in fingerprints.items():
            current = self._registrar.announcements.current(name)
            if current is not None and current.fingerprint != fingerprint and not self._outdated:
                log.error("worker.outdated", profile=name, current=current.fingerprint)
                self._outdated = True
                os.kill(os.getpid(), signal.SIGTERM)

    def _leave(self, fingerprints: Mapping[str, str]) -> None:
        try:
            self._registrar.announcements.leave(self._name, fingerprints)
        except Unavailable as error:
            log.warning("worker.left_silently", reason=error.message)  # it is forgotten within seconds


def _warm_up(extractor: Extractor) -> None:
    prepared = [extractor.prepare(extractor.example())]
    for encoded in extractor.encode(prepared):
        extractor.finish(encoded)
