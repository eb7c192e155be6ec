"""Tests in which a real Prometheus scrapes real processes and answers the dashboard's queries. Its server
comes with Debian's package `prometheus`; the tests are skipped without it.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from tests.integration.test_metrics import play
from tests.ports import free_port
from tests.processes import OPTIONAL_PROFILE, QUICK, RegistryProcesses
from tests.queue_workers import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/registry.json").read_text())
WITHOUT_DATA = {
    "Jobs in the queue",
    "The next job has waited",
    "Jobs that no worker serves",
    "Memory of the device",
    "State of the newest campaign",
    "Voices of the newest campaign",
    "Voices ended each second",
}
"""The panels that stay empty: no job waits by then, a worker that computes nothing has no device, and there
was no campaign.
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A Prometheus server that has scraped the processes before and after every possible
    result of a request.
    """
    folder = tmp_path_factory.mktemp("prometheus")
    environment = {
        **QUICK,
        "LIGHT_WORKER_FAILS": OPTIONAL_PROFILE,
        "SPEAKER_API_CORS_ORIGINS": "https://page.example",
    }
    with RegistryProcesses(folder, environment=environment) as registry, httpx.Client(timeout=30) as client:
        port = free_port()
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration(registry)))
        command = ["prometheus", f"--config.file={folder}/prometheus.yaml"]
        command += [f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address=127.0.0.1:{port}"]
        server = subprocess.Popen(command, stderr=(folder / "prometheus.log").open("w"))
        try:
            client.base_url = httpx.URL(registry.urls[0])
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=10) as asking:
                wait_until(lambda: scrapes(asking) == 2)
                play(registry, client)
                wait_until(lambda: counted(asking, 'registry_artifact_requests_total{result="error"}') == "1")
                yield asking
        finally:
            server.terminate()
            server.wait()


def configuration(registry: RegistryProcesses) -> dict[str, Any]:
    """Return the repository's configuration with the addresses of the processes and a
    shorter scrape interval.
    """
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus/alerts.yaml")]
    places = {"registry-api": "api0", "registry-worker": "worker0"}
    targets = {job: urlsplit(registry.metrics_urls[name]).netloc for job, name in places.items()}
    config["scrape_configs"] = [
        {"job_name": job["job_name"], "static_configs": [{"targets": [targets[job["job_name"]]]}]}
        for job in config["scrape_configs"]
        if job["job_name"] in targets
    ]
    return config


def scrapes(asking: httpx.Client) -> int:
    """Return how many of the processes Prometheus has scraped."""
    with suppress(httpx.TransportError):
        return len(ask(asking, "up == 1"))
    return 0


def counted(asking: httpx.Client, query: str) -> str | None:
    found = ask(asking, query)
    return found[0]["value"][1] if found else None


def ask(asking: httpx.Client, query: str) -> list[Any]:
    response = asking.get("/query", params={"query": query})
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:  # it starts
        return []
    assert response.status_code == httpx.codes.OK, (query, response.text)
    found: list[Any] = response.json()["data"]["result"]
    return found


def test_every_panel_has_an_answer(prometheus: httpx.Client):
    """Every panel has an answer. A query can be well written and still match nothing, or too much."""

    def empty() -> set[str]:
        return {
            panel["title"]
            for panel in DASHBOARD["panels"]
            for target in panel.get("targets", [])
            if not ask(prometheus, target["expr"].replace("$__rate_interval", "30s"))
        }

    wait_until(lambda: empty() <= WITHOUT_DATA)  # two scrapes make a rate
    assert empty() == WITHOUT_DATA


def test_the_alert_for_what_is_missing_fires(prometheus: httpx.Client):
    """The alert for missing data fires for an artifact whose bytes were removed and for one whose bytes were
    changed.
    """

    def firing() -> set[str]:
        alerts = prometheus.get("/alerts").json()["data"]["alerts"]
        return {one["annotations"]["summary"] for one in alerts if one["state"] == "firing"}

    wait_until(lambda: len(firing()) == 2)
    told = "The bucket does not hold what it should: {}."
    assert firing() == {told.format("missing"), told.format("damaged")}
