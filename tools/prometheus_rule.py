"""Print k8s/monitoring/rules.yaml: the alert rules of deploy/prometheus as Prometheus' operator takes them.

.venv/bin/python -m tools.prometheus_rule > k8s/monitoring/rules.yaml
"""

from pathlib import Path

import yaml

ALERTS = Path(__file__).parents[1] / "deploy" / "prometheus" / "alerts.yaml"


def rule() -> str:
    """YAML."""
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "registry"},
        "spec": yaml.safe_load(ALERTS.read_text()),
    }
    made = "# Made by tools/prometheus_rule.py from deploy/prometheus/alerts.yaml.\n"
    return made + yaml.safe_dump(resource, sort_keys=False, allow_unicode=True, width=110)


if __name__ == "__main__":
    print(rule(), end="")
