"""The files for Prometheus and Grafana: what they ask for exists, and each alert fires when it should.

promtool comes with Prometheus (Debian's package `prometheus`); without it what it says is not tested.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from services.shared.telemetry import metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus/alerts.yaml"
CASES = Path(__file__).parents[1] / "data/alerts_test.yaml"
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/registry.json").read_text())
SCRAPED = {"instance", "job"}
"""Labels that Prometheus itself adds."""
SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}

promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def series() -> dict[str, set[str]]:
    """Name -> labels, of everything that API or workers may show, and of what we ask others for."""
    found = {"up": set(), "haproxy_backend_active_servers": {"proxy"}, "keda_scaler_active": {"scaledObject"}}
    for collector in list(metrics.REGISTRY._collector_to_names):
        labels = set(getattr(collector, "_labelnames", ()))
        for family in collector.collect():
            extra = {"le"} if family.type == "histogram" else set()
            for suffix in SUFFIXES.get(family.type, [""]):
                found[family.name + suffix] = labels | extra
    return found | {asked.name: set(asked.labels) for asked in metrics.SCRAPED_GAUGES}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[Any]:
    """Return (place, expression) for each expression."""
    asked = [(rule["alert"], rule["expr"]) for rule in rules()]
    for panel in panels():
        asked += [
            (panel["title"], target["expr"].replace("$__rate_interval", "5m")) for target in panel["targets"]
        ]
    return [
        pytest.param(promql_parser.parse(text), id=f"{where}-{number}")
        for number, (where, text) in enumerate(asked)
    ]


def selectors(expression: Any) -> Iterator[tuple[str, set[str]]]:
    """Every series that is asked for, with the labels it is asked by."""
    found: list[tuple[str, set[str]]] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append((node.name, {matcher.name for matcher in node.matchers.matchers}))

    promql_parser.walk(expression, visit)
    return iter(found)


def groupings(expression: Any) -> set[str]:
    """Labels that results are summed up by."""
    found: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
            found.update(node.modifier.labels)

    promql_parser.walk(expression, visit)
    return found


@pytest.mark.parametrize("expression", expressions())
def test_what_an_alert_or_a_panel_asks_for_exists(expression: Any):
    """A misspelt name fails nothing: the alert just never fires, the panel stays empty."""
    known, possible = series(), set(SCRAPED)
    for name, labels in selectors(expression):
        assert name in known
        assert labels <= known[name] | SCRAPED, name
        possible |= known[name]
    assert groupings(expression) <= possible


def test_every_metric_is_shown_or_watched():
    """A metric that is never looked at need not be counted."""
    asked = {name for parameter in expressions() for name, _ in selectors(parameter.values[0])}
    stems = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in asked}
    declared = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in series()}
    assert {name for name in declared if name.startswith("registry_")} <= stems


def test_every_panel_says_what_it_shows_and_lies_on_its_own():
    """Two that overlap hide one of them; Grafana moves them about when it draws them."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert max(right for right, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert all(panel["description"].endswith(".") for panel in panels())
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_grafana_is_told_where_both_are():
    """The dashboard's source is the one that is provisioned."""
    provisioning = DEPLOY / "grafana/provisioning"
    [source] = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    [variable] = DASHBOARD["templating"]["list"]
    assert (variable["query"], variable["current"]["value"]) == (source["type"], source["uid"])
    uses = {target["datasource"]["uid"] for panel in panels() for target in panel["targets"]}
    assert uses == {"${" + variable["name"] + "}"}
    [provider] = yaml.safe_load((provisioning / "dashboards/registry.yaml").read_text())["providers"]
    assert provider["options"]["path"].startswith("/")


def test_what_is_scraped_is_what_docker_compose_starts():
    """Prometheus would find nothing under another name or on another port."""
    services = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())["services"]
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
    scraped = {
        (name, str(source["port"]))
        for job in config["scrape_configs"]
        for source in job["dns_sd_configs"]
        for name in source["names"]
    }
    shown = {
        (name, environment["SPEAKER_METRICS_PORT"])
        for name, service in services.items()
        if "SPEAKER_METRICS_PORT" in (environment := service.get("environment", {}))
    }
    proxy = services["proxy"]["environment"]["REGISTRY_METRICS_LISTEN"].removeprefix(":")
    assert scraped == shown | {("proxy", proxy)}


def test_every_alert_says_what_is_wrong_what_to_do_and_whom_to_tell():
    """An operator who is woken by an alert may never have seen it."""
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert all(text.endswith(".") for text in rule["annotations"].values()), rule["alert"]


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    """One that never fires looks just like a registry that is well."""
    checks = [
        check for case in yaml.safe_load(CASES.read_text())["tests"] for check in case["alert_rule_test"]
    ]
    for fires in (True, False):
        shown = {check["alertname"] for check in checks if bool(check["exp_alerts"]) == fires}
        assert shown == {rule["alert"] for rule in rules()}


@pytest.mark.processes
@promtool
def test_prometheus_accepts_configuration_and_rules():
    run("check", "config", str(DEPLOY / "prometheus/prometheus.yaml"))
    said = run("check", "rules", str(ALERTS))
    assert f"{len(rules())} rules found" in said


@pytest.mark.slow
@pytest.mark.processes
@promtool
def test_every_alert_fires_when_it_should(tmp_path: Path):
    """Prometheus' own arithmetic decides. Texts are left out, because promtool would compare them word for
    word.
    """
    config = yaml.safe_load(ALERTS.read_text())
    for rule in config["groups"][0]["rules"]:
        del rule["annotations"]
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(config))
    shutil.copy(CASES, tmp_path)
    assert "SUCCESS" in run("test", "rules", str(tmp_path / CASES.name))


def run(*words: str) -> str:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
