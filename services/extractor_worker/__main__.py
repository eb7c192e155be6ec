"""`python -m services.extractor_worker`: one worker process. Loads its models, warms them, then takes
jobs.
"""

import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping

import structlog

from services.extractor_worker.batch_worker import BatchWorker
from services.extractor_worker.catalogue import load_extractor
from services.extractor_worker.extraction import Extraction, Station
from services.extractor_worker.extractor import Extractor
from services.extractor_worker.weights import parse_weights
from services.shared.announcements import Announcements
from services.shared.dispatch import EXTRACT
from services.shared.logs import configure_logs
from services.shared.opening import open_queue_connection, open_registrar
from services.shared.publication import Maker, Publisher
from services.shared.queue import queue_name
from services.shared.settings import (
    ExtractorSettings,
    LogSettings,
    RegistrySettings,
    StoreSettings,
    WorkerSettings,
)
from services.shared.store import StoreUnfit
from speaker_registry.errors import SpeakerRegistryError

log = structlog.get_logger()

EXIT_OUTDATED = 3
"""Another worker announced a newer fingerprint: what we make would not be served."""


def main() -> int:
    """Work until told to stop. Returns the exit status: 1 if models or settings are wrong, else the
    worker's.
    """
    configure_logs(LogSettings().level)
    try:
        return _Process().run()
    except (SpeakerRegistryError, StoreUnfit) as error:
        log.error("worker.cannot_start", reason=str(error))
        return 1


class _Process:
    """The parts of this process, and what ties them together."""

    def __init__(self) -> None:
        self._settings = ExtractorSettings()
        self._registry = RegistrySettings()
        self._registrar = open_registrar(StoreSettings(), self._registry)
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._outdated = False

    def run(self) -> int:
        stations = {name: self._load(name) for name in self._settings.profiles or self._registry.profiles}
        fingerprints = {name: station.maker.fingerprint for name, station in stations.items()}
        announcements = self._registrar.announcements
        _announce(announcements, stations, roll_back=self._settings.roll_back)

        def on_beat() -> None:
            announcements.beat(self._name, fingerprints)
            self._leave_if_outdated(fingerprints)

        extraction = Extraction(Publisher(self._registrar), stations, threads=self._settings.threads)
        worker = BatchWorker(
            [queue_name(name) for name in stations],
            {EXTRACT: extraction},
            connection=open_queue_connection(self._registry),
            settings=WorkerSettings(),
            name=self._name,
            on_beat=on_beat,
        )
        extraction.on_progress = worker.progress
        announcements.beat(self._name, fingerprints)
        log.info("worker.ready", worker=self._name, profiles=sorted(stations))
        try:
            worker.work()
        finally:
            extraction.close()
            announcements.leave(self._name, fingerprints)
        return EXIT_OUTDATED if self._outdated else 0

    def _load(self, name: str) -> Station:
        """Load a profile's encoders and run them once: the first real clip is to be as fast as the tenth."""
        profile = self._registrar.catalogue.get(name)
        started = time.monotonic()
        source = parse_weights(self._settings.weights)
        extractor = load_extractor(name, source, self._settings.device, self._settings.dtype)
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

    def _leave_if_outdated(self, fingerprints: Mapping[str, str]) -> None:
        for name, fingerprint in fingerprints.items():
            current = self._registrar.announcements.current(name)
            if current is not None and current.fingerprint != fingerprint:
                log.error("worker.outdated", profile=name, current=current.fingerprint)
                self._outdated = True
                os.kill(os.getpid(), signal.SIGTERM)


def _announce(announcements: Announcements, stations: Mapping[str, Station], *, roll_back: bool) -> None:
    for name, station in stations.items():
        maker = station.maker
        changed = announcements.announce(
            name, maker.fingerprint, maker.extractor, untrained=maker.untrained, roll_back=roll_back
        )
        if changed:
            log.info("profile.updated", profile=name, fingerprint=maker.fingerprint)


def _warm_up(extractor: Extractor) -> None:
    prepared = [extractor.prepare(extractor.example())]
    for encoded in extractor.encode(prepared):
        extractor.finish(encoded)


if __name__ == "__main__":
    sys.exit(main())
