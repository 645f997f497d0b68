"""compose.yaml: its promises, without an engine."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from frontend_service.settings import FrontendSettings
from gpu_worker.settings import WorkerSettings
from shared.server import probe
from shared.server.options import PUBLIC_SERVICES, WORKER_SERVICES

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
GPUS = ("worker-gpu", "worker-gpu-2")
WORKERS = (*GPUS, "worker-cpu")
ALL = (*WORKERS, "frontend")
"""Those of ours; the others are other people's programs."""
OTHERS = ("proxy", "prometheus", "grafana")
SETTINGS: dict[str, Any] = {"frontend": FrontendSettings, **dict.fromkeys(WORKERS, WorkerSettings)}


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def listens_on(service: str) -> str:
    settings = SERVICES[service]["environment"].items()
    [address] = [value for key, value in settings if re.fullmatch(r"SELVAGE_[A-Z]+_LISTEN", key)]
    return str(address)


@pytest.mark.parametrize("name", WORKERS)
def test_the_frontend_asks_where_the_worker_listens(name: str) -> None:
    target = SERVICES["frontend"]["environment"]["SELVAGE_FRONTEND_WORKER"]
    assert f"dns:///worker:{port_of(listens_on(name))}" == target
    assert SERVICES[name]["networks"] == {"default": {"aliases": ["worker"]}}


@pytest.mark.parametrize("name", ALL)
def test_metrics_are_told_inside_the_network_only(name: str) -> None:
    """To whoever joins it; no port of the host leads there."""
    [address] = [value for key, value in SERVICES[name]["environment"].items() if key.endswith("_METRICS")]
    assert address.startswith("0.0.0.0:")
    assert not any(port_of(address) == port_of(each) for each in SERVICES[name].get("ports", ()))


def test_there_is_one_port_for_all_replicas() -> None:
    """The proxy's, of each door, where frontends listen; replicas could not share one of the host."""
    grpc_port, http_port = map(port_of, SERVICES["proxy"]["ports"])
    assert grpc_port == port_of(listens_on("frontend"))
    assert http_port == port_of(SERVICES["frontend"]["environment"]["SELVAGE_FRONTEND_HTTP_LISTEN"])
    assert not [name for name in ALL if "ports" in SERVICES[name]]


@pytest.mark.parametrize("name", OTHERS)
def test_only_this_machine_is_served_unless_told_otherwise(name: str) -> None:
    assert all(port.startswith(("${PUBLISH:-127.0.0.1}:", "127.0.0.1:")) for port in SERVICES[name]["ports"])


@pytest.mark.parametrize("name", SERVICES)
def test_containers_are_locked_down(name: str) -> None:
    """Read-only but for /tmp and volumes, without capabilities, and none to be had."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"user", "privileged", "cap_add"} & set(service)
    assert service["mem_limit"]


def test_the_drain_outlasts_the_proxys_checks() -> None:
    """Else it would send calls to a frontend that takes none any more."""
    config = (ROOT / "deploy/proxy/haproxy.cfg").read_text()
    [(between, fall)] = set(re.findall(r"check inter (\d+)s fall (\d+)", config))  # of both doors
    [patience] = re.findall(r"timeout check (\d+)s", config)
    delay = SERVICES["frontend"]["environment"]["SELVAGE_FRONTEND_DRAIN_DELAY"]
    assert delay > int(fall) * (int(between) + int(patience))


@pytest.mark.parametrize("name", ALL)
def test_the_grace_period_outlasts_the_drain(name: str) -> None:
    fields = SETTINGS[name].model_fields
    delay = SERVICES[name]["environment"].get("SELVAGE_FRONTEND_DRAIN_DELAY", 0)
    drain = fields["drain_seconds"].default + delay
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > drain


@pytest.mark.parametrize("name", ALL)
def test_health_is_probed_where_the_service_listens(name: str) -> None:
    *command, address, service, end = SERVICES[name]["healthcheck"]["test"]
    assert command == ["CMD", "python", "-m", "shared.server.probe"]
    assert end == "--end-hung"
    assert address == f"127.0.0.1:{port_of(listens_on(name))}"
    assert service in (PUBLIC_SERVICES if name == "frontend" else WORKER_SERVICES)
    assert int(SERVICES[name]["healthcheck"]["timeout"].removesuffix("s")) > probe.SILENCES * 5


@pytest.mark.parametrize("name", ALL)
def test_every_variable_is_a_setting(name: str) -> None:
    fields, prefix = SETTINGS[name].model_fields, SETTINGS[name].model_config["env_prefix"]
    assert set(SERVICES[name]["environment"]) <= {f"{prefix}{field.upper()}" for field in fields}


def test_variables_that_stand_empty_choose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fingerprints and origins, which `.env` may name."""
    for setting, default in (("HTTP_CORS_ORIGIN", "${HTTP_CORS_ORIGIN:-}"), ("FINGERPRINT", "${FINGERPRINT:-}")):
        assert SERVICES["frontend"]["environment"][f"SELVAGE_FRONTEND_{setting}"] == default
        monkeypatch.setenv(f"SELVAGE_FRONTEND_{setting}", "")
    settings = FrontendSettings.read([])
    assert settings.fingerprint == settings.http_cors_origin == ()


@pytest.mark.parametrize(("name", "number"), [("worker-gpu", "0"), ("worker-gpu-2", "1")])
def test_a_gpu_worker_reserves_a_gpu_of_its_own(name: str, number: str) -> None:
    """It sees no other, and starts on nothing else."""
    [device] = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": [number], "capabilities": ["gpu"]}
    assert SERVICES[name]["environment"]["SELVAGE_WORKER_DEVICE"] == "cuda"


def test_docker_compose_takes_it() -> None:
    """Where there is a docker-compose; elsewhere it is YAML with no key that version 1 lacks."""
    assert not {"name", "include"} & set(COMPOSE)
    assert all("start_interval" not in service.get("healthcheck", {}) for service in SERVICES.values())
    if program := shutil.which("docker-compose"):
        profiles = ("gpu", "gpu2", "cpu", "monitoring")
        command = [program, "--file", "compose.yaml", *(f"--profile={each}" for each in profiles)]
        command += ["config", "--quiet"]
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
