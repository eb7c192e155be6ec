"""Metrics as Prometheus sees them, for tests. Knows the text format, not what is measured."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from services.shared.telemetry.metrics import REGISTRY

PROMETHEUS_SECONDS = 10
"""The longest that a scrape may take. It is Prometheus' own default."""


@dataclass(frozen=True)
class Scrape:
    """All samples of one scrape, by name and labels."""

    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def of(cls, url: str) -> "Scrape":
        response = httpx.get(url, timeout=PROMETHEUS_SECONDS)
        assert response.status_code == 200, response.text
        return cls.parse(response.text)

    @classmethod
    def parse(cls, text: str) -> "Scrape":
        families = text_string_to_metric_families(text)
        found = (sample for family in families for sample in family.samples)
        return cls({(sample.name, frozenset(sample.labels.items())): sample.value for sample in found})

    def value(self, name: str, **labels: str) -> float | None:
        """None where there is no such series."""
        return self.samples.get((name, frozenset(labels.items())))

    def series(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """All that have these labels, by their other labels' values in the order of the labels' names."""
        found = {}
        for (one, every), value in self.samples.items():
            if one == name and labels.items() <= dict(every).items():
                found[tuple(text for label, text in sorted(every) if label not in labels)] = value
        return found


@contextmanager
def counted(name: str, **labels: str) -> Iterator[list[float]]:
    """Yield a list. After the block, it holds how much the sample rose in this process meanwhile."""
    rise: list[float] = []
    before = REGISTRY.get_sample_value(name, labels) or 0
    yield rise
    rise.append((REGISTRY.get_sample_value(name, labels) or 0) - before)
