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


def test_exactly_these_services_exist() -> None:
    """Workers, one kind of frontend, a proxy, and who watches them."""
    assert {*ALL, *OTHERS} == set(SERVICES)


def test_a_profile_starts_the_workers_of_a_machine() -> None:
    """A plain `up` starts none; a machine with one GPU is never asked for two."""
    started = {
        profile: [name for name in WORKERS if profile in SERVICES[name]["profiles"]]
        for profile in ("gpu", "gpu2", "cpu")
    }
    assert started == {"gpu": ["worker-gpu"], "gpu2": ["worker-gpu", "worker-gpu-2"], "cpu": ["worker-cpu"]}


@pytest.mark.parametrize("name", ["frontend", "proxy"])
def test_the_frontend_and_its_proxy_are_up_in_every_profile(name: str) -> None:
    """They name none."""
    assert "profiles" not in SERVICES[name]


@pytest.mark.parametrize("name", WORKERS)
def test_the_workers_share_one_alias(name: str) -> None:
    """The frontends' setting holds for both."""
    assert SERVICES[name]["networks"] == {"default": {"aliases": ["worker"]}}


@pytest.mark.parametrize("name", WORKERS)
def test_the_frontend_asks_where_the_worker_listens(name: str) -> None:
    """The alias, and the port of either worker."""
    target = SERVICES["frontend"]["environment"]["SELVAGE_FRONTEND_WORKER"]
    assert f"dns:///worker:{port_of(listens_on(name))}" == target


@pytest.mark.parametrize("name", ALL)
def test_a_container_listens_to_its_neighbours(name: str) -> None:
    """The default, the loopback address, would reach nobody."""
    assert listens_on(name).startswith("0.0.0.0:")


@pytest.mark.parametrize("name", ALL)
def test_metrics_are_told_inside_the_network_only(name: str) -> None:
    """To whoever joins it; no port of the host leads there."""
    [address] = [value for key, value in SERVICES[name]["environment"].items() if key.endswith("_METRICS")]
    assert address.startswith("0.0.0.0:")
    assert not any(port_of(address) == port_of(each) for each in SERVICES[name].get("ports", ()))


def test_the_frontend_runs_as_replicas() -> None:
    """More than one unless told otherwise."""
    assert SERVICES["frontend"]["deploy"]["replicas"] == 2


def test_there_is_one_port_for_all_replicas() -> None:
    """The proxy's, of each door, where frontends listen; replicas could not share one of the host."""
    grpc_port, http_port = map(port_of, SERVICES["proxy"]["ports"])
    assert grpc_port == port_of(listens_on("frontend"))
    assert http_port == port_of(SERVICES["frontend"]["environment"]["SELVAGE_FRONTEND_HTTP_LISTEN"])
    assert not [name for name in ALL if "ports" in SERVICES[name]]


@pytest.mark.parametrize("name", OTHERS)
def test_only_this_machine_is_served_unless_told_otherwise(name: str) -> None:
    """Neither TLS nor keys are on."""
    assert all(port.startswith(("${PUBLISH:-127.0.0.1}:", "127.0.0.1:")) for port in SERVICES[name]["ports"])


@pytest.mark.parametrize(("chosen", "origins"), [("", ()), ("*", ("*",))])
def test_origins_can_be_chosen(monkeypatch: pytest.MonkeyPatch, chosen: str, origins: tuple[str, ...]) -> None:
    """By a variable; without it no page of others is served."""
    variable = "SELVAGE_FRONTEND_HTTP_CORS_ORIGIN"
    assert SERVICES["frontend"]["environment"][variable] == "${HTTP_CORS_ORIGIN:-}"
    monkeypatch.setenv(variable, chosen)
    assert FrontendSettings.read([]).http_cors_origin == origins


def test_only_the_proxy_reaches_frontends() -> None:
    """Their own ports are for the network inside: a frontend does not stand on the internet alone."""
    assert "ports" not in SERVICES["frontend"]


@pytest.mark.parametrize("chosen", ["", "0" * 64, f"{'0' * 64},{'1' * 64}"])
def test_a_fingerprint_can_be_chosen(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    """By a variable; without it any model is served."""
    value = SERVICES["frontend"]["environment"]["SELVAGE_FRONTEND_FINGERPRINT"]
    assert value == "${FINGERPRINT:-}"
    monkeypatch.setenv("SELVAGE_FRONTEND_FINGERPRINT", chosen)
    assert FrontendSettings.read([]).fingerprint == tuple(filter(None, chosen.split(",")))


@pytest.mark.parametrize("name", ALL)
def test_nothing_depends_on_start_order(name: str) -> None:
    """A frontend waits for its worker by itself."""
    assert "depends_on" not in SERVICES[name]


@pytest.mark.parametrize("name", SERVICES)
def test_compose_leaves_the_user_of_the_image(name: str) -> None:
    """It does not make it root again."""
    assert not {"user", "privileged", "cap_add"} & set(SERVICES[name])


@pytest.mark.parametrize("name", SERVICES)
def test_containers_are_locked_down(name: str) -> None:
    """Read-only but for /tmp and volumes, without capabilities, and none to be had."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", SERVICES)
def test_containers_are_limited(name: str) -> None:
    """In memory, processes, open files, and what they log; ours in what they leave in /tmp."""
    service = SERVICES[name]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert service["ulimits"]["nofile"] > 4096  # connections
    assert {"max-size", "max-file"} == set(service["logging"]["options"])
    assert name not in ALL or service["tmpfs"] == ["/tmp:size=64m"]


@pytest.mark.parametrize("name", SERVICES)
def test_containers_come_back(name: str) -> None:
    """After a crash and after a reboot, but not after a stop."""
    assert SERVICES[name]["restart"] == "unless-stopped"


def test_the_drain_outlasts_the_proxys_checks() -> None:
    """Else it would send calls to a frontend that takes none any more."""
    config = (ROOT / "deploy/proxy/haproxy.cfg").read_text()
    [(between, fall)] = set(re.findall(r"check inter (\d+)s fall (\d+)", config))  # of both doors
    [patience] = re.findall(r"timeout check (\d+)s", config)
    delay = SERVICES["frontend"]["environment"]["SELVAGE_FRONTEND_DRAIN_DELAY"]
    assert delay > int(fall) * (int(between) + int(patience))


@pytest.mark.parametrize("name", ALL)
def test_the_grace_period_outlasts_the_drain(name: str) -> None:
    """Else the engine kills what still answers."""
    fields = SETTINGS[name].model_fields
    delay = SERVICES[name]["environment"].get("SELVAGE_FRONTEND_DRAIN_DELAY", 0)
    drain = fields["drain_seconds"].default + delay
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > drain


@pytest.mark.parametrize("name", ALL)
def test_signals_reach_a_service_that_still_starts(name: str) -> None:
    """The kernel hides them from process 1 as long as it has no handler, and SIGKILL always."""
    assert SERVICES[name]["init"] is True


@pytest.mark.parametrize("name", ALL)
def test_health_is_probed_where_the_service_listens(name: str) -> None:
    """Readiness, not only life: a full service name."""
    *command, address, service, end = SERVICES[name]["healthcheck"]["test"]
    assert command == ["CMD", "python", "-m", "shared.server.probe"]
    assert end == "--end-hung"
    assert address == f"127.0.0.1:{port_of(listens_on(name))}"
    assert service in (PUBLIC_SERVICES if name == "frontend" else WORKER_SERVICES)


@pytest.mark.parametrize("name", ALL)
def test_a_probe_has_the_time_to_see_that_a_service_hangs(name: str) -> None:
    """Before the engine ends the probe itself."""
    assert int(SERVICES[name]["healthcheck"]["timeout"].removesuffix("s")) > probe.SILENCES * 5


@pytest.mark.parametrize("name", ALL)
def test_every_variable_is_a_setting(name: str) -> None:
    """A misspelt one would be ignored in silence."""
    fields, prefix = SETTINGS[name].model_fields, SETTINGS[name].model_config["env_prefix"]
    assert set(SERVICES[name]["environment"]) <= {f"{prefix}{field.upper()}" for field in fields}


@pytest.mark.parametrize(("name", "number"), [("worker-gpu", "0"), ("worker-gpu-2", "1")])
def test_a_gpu_worker_reserves_a_gpu_of_its_own(name: str, number: str) -> None:
    """It sees no other, and starts on nothing else."""
    [device] = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": [number], "capabilities": ["gpu"]}
    assert SERVICES[name]["environment"]["SELVAGE_WORKER_DEVICE"] == "cuda"


def test_gpu_workers_differ_in_their_gpu_alone() -> None:
    """The frontends give any call to either."""
    one, other = ({key: SERVICES[name][key] for key in SERVICES[name]} for name in GPUS)
    for each in (one, other):
        del each["deploy"], each["profiles"]
    assert one == other


def test_the_cpu_worker_is_built_without_cuda() -> None:
    """From PyTorch's own index; it reserves nothing."""
    assert SERVICES["worker-cpu"]["build"]["args"] == {"TORCH_INDEX": "https://download.pytorch.org/whl/cpu"}
    assert "deploy" not in SERVICES["worker-cpu"]


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_other_peoples_images_are_named_by_their_full_version(name: str) -> None:
    """Which a variable replaces."""
    assert re.fullmatch(r"\$\{\w+:-[\w/]+:v?\d+\.\d+\.\d+\}", SERVICES[name]["image"])


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
