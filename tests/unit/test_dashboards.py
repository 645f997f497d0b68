"""The dashboard and the rules: what they name exists, and Prometheus takes them."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from frontend_service.metrics import FrontendMetrics
from gpu_worker.metrics import WorkerMetrics
from gpu_worker.schedule.interface import WorkerFigures
from shared.metrics import Page
from shared.server.admission import Admission, Bounds

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
RULES: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())
SCRAPES: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
SERIES = re.compile(r"\b(?:selvage|grpc_server|process|te)_[a-z_]+")
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def rules(kind: str) -> list[dict[str, Any]]:
    """`alert` or `record`."""
    return [rule for group in RULES["groups"] for rule in group["rules"] if kind in rule]


def told() -> dict[str, set[str]]:
    """All series of both processes, with their labels."""
    found: dict[str, set[str]] = {}
    frontend, worker = Page(), Page()
    fleet: Any = SimpleNamespace(
        refused={}, workers={"m": 1}, aside={"m": 0}, waits={"m": 0.0}, fingerprints={"m": "f"}
    )
    FrontendMetrics(frontend.registry).read(Admission(Bounds()), fleet)
    WorkerMetrics(worker.registry).read(
        lambda: WorkerFigures(queued_tokens=0, queued_jobs=0, refused={}, cancelled_waiting=0, stalled=False)
    )
    for page in (frontend, worker):
        for family in page.registry.collect():
            names = {f"{family.name}{suffix}" for suffix in SUFFIXES[family.type]}
            labels = {label for sample in family.samples for label in sample.labels}
            found |= {name: found.get(name, set()) | labels for name in names}
    return found


def named(expression: str) -> set[str]:
    """Series of an expression, without what stands in quotes."""
    return set(SERIES.findall(re.sub(r'"[^"]*"', "", expression))) - {"grpc_server"}


EXPRESSIONS = {
    **{f"panel {panel['title']}, {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]},
    **{rule["alert"]: rule["expr"] for rule in rules("alert")},
    **{rule["record"]: rule["expr"] for rule in rules("record")},
}


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_every_series_exists(where: str) -> None:
    """A misspelt one would show an empty panel, or an alert that never comes."""
    series = named(EXPRESSIONS[where])
    assert series
    assert series <= set(told())


def test_grafana_is_provisioned() -> None:
    """With the Prometheus of compose.yaml, and the dashboard where compose.yaml puts it."""
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    folder = DEPLOY / "grafana/provisioning"
    [source] = yaml.safe_load((folder / "datasources/prometheus.yaml").read_text())["datasources"]
    [provider] = yaml.safe_load((folder / "dashboards/selvage.yaml").read_text())["providers"]
    port = services["prometheus"]["ports"][0].rpartition(":")[2]
    mounted = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    assert source["url"] == f"http://prometheus:{port}"
    assert mounted["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    assert Path(mounted["./deploy/grafana/dashboard.json"]).parent == Path(provider["options"]["path"])


def test_what_is_scraped_is_where_compose_serves_it() -> None:
    """The jobs, the port, and the names in the network."""
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    own = [each["environment"] for name, each in services.items() if name.startswith(("frontend", "worker"))]
    ports = {value for environment in own for key, value in environment.items() if "METRICS" in key}
    *jobs, proxy = SCRAPES["scrape_configs"]
    assert [job["job_name"] for job in jobs] == ["selvage-frontend", "selvage-worker"]
    assert {f"0.0.0.0:{found['port']}" for job in jobs for found in job["dns_sd_configs"]} == ports
    [found] = proxy["dns_sd_configs"]
    assert f"bind :{found['port']}" in (DEPLOY / "proxy/haproxy.cfg").read_text()


def test_every_metric_is_explained() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in told() if name.startswith("selvage_")}
    assert set(re.findall(r"`(selvage_[a-z_]+)[`{]", page)) == families


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool; Debian's package prometheus has it")
def test_prometheus_takes_them() -> None:
    for *words, name in (
        ("check", "rules", "rules.yaml"),
        ("check", "config", "prometheus.yaml"),
        ("test", "rules", "rules_test.yaml"),
    ):
        command = ["promtool", *words, str(DEPLOY / "prometheus" / name)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr + answer.stdout
