"""The manifests: valid by Kubernetes' own schemas, and true to the services that they run."""

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from frontend_service.settings import FrontendSettings
from gpu_worker.settings import WorkerSettings
from shared.server.options import PUBLIC_SERVICES, WORKER_SERVICES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
MANIFESTS: dict[str, dict[str, Any]] = {
    f"{found['kind']} {found['metadata']['name']}": found
    for name in KUSTOMIZATION["resources"]
    for found in yaml.safe_load_all((FOLDER / name).read_text())
}
SETTINGS = {"frontend": FrontendSettings, "worker": WorkerSettings}
SERVED = {"frontend": PUBLIC_SERVICES, "worker": WORKER_SERVICES}
OLDEST = "1.30"
SCALED_OBJECTS: dict[str, dict[str, Any]] = {
    manifest["metadata"]["name"]: manifest for manifest in yaml.safe_load_all((FOLDER / "keda.yaml").read_text())
}


def closed(required: str = "", **properties: Any) -> dict[str, Any]:
    """The schema of an object that has no keys but these."""
    names = required.split()
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


COUNT, STRING = {"type": "integer", "minimum": 0}, {"type": "string"}
TRIGGER = closed(
    "type metadata",
    type=STRING,
    name=STRING,
    metricType={"enum": ["AverageValue", "Value", "Utilization"]},
    metadata={"type": "object", "additionalProperties": STRING},
    useCachedMetrics={"type": "boolean"},
    authenticationRef=closed("name", name=STRING, kind=STRING),
)
SCALED_OBJECT = closed(
    "apiVersion kind metadata spec",
    apiVersion={"const": "keda.sh/v1alpha1"},
    kind={"const": "ScaledObject"},
    metadata=closed("name", name=STRING, labels={"type": "object"}, annotations={"type": "object"}),
    spec=closed(
        "scaleTargetRef triggers",
        scaleTargetRef=closed("name", apiVersion=STRING, kind=STRING, name=STRING, envSourceContainerName=STRING),
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        idleReplicaCount=COUNT,
        pollingInterval=COUNT,
        cooldownPeriod=COUNT,
        initialCooldownPeriod=COUNT,
        fallback=closed("failureThreshold replicas", failureThreshold=COUNT, replicas=COUNT, behavior=STRING),
        triggers={"type": "array", "minItems": 1, "items": TRIGGER},
        advanced=closed(
            horizontalPodAutoscalerConfig=closed(name=STRING, behavior={"type": "object"}),
            restoreToOriginalReplicaCount={"type": "boolean"},
        ),
    ),
)
"""What KEDA's reference says of a ScaledObject (`keda.sh/docs/latest/reference/scaledobject-spec`)."""
PROMETHEUS = closed(
    "serverAddress query threshold",
    **dict.fromkeys(("serverAddress", "query", "threshold", "activationThreshold"), STRING),
    ignoreNullValues={"enum": ["true", "false"]},
)
CPU = closed("value", value=STRING, containerName=STRING)
METADATA = {"prometheus": PROMETHEUS, "cpu": CPU}
"""What KEDA's scalers take, by their type."""


def pod(name: str) -> dict[str, Any]:
    found: dict[str, Any] = MANIFESTS[f"Deployment selvage-{name}"]["spec"]["template"]["spec"]
    return found


def container(name: str) -> dict[str, Any]:
    [found] = pod(name)["containers"]
    return dict(found)


def environment(name: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(name)["env"]}


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_kubernetes_takes_them(manifest: str) -> None:
    """The oldest version that we name and the newest that the schemas are there for; no key that it does not know."""
    for version in (OLDEST, kubernetes_validate.latest_version()):
        kubernetes_validate.validate(MANIFESTS[manifest], version, strict=True)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_variable_is_a_setting(name: str) -> None:
    fields, prefix = SETTINGS[name].model_fields, SETTINGS[name].model_config["env_prefix"]
    assert set(environment(name)) <= {f"{prefix}{field.upper()}" for field in fields}


@pytest.mark.parametrize("name", SETTINGS)
def test_ports_are_those_that_it_listens_on(name: str) -> None:
    """Of the process, the pod, the service, the probes and the scrape."""
    prefix = f"SELVAGE_{name.upper()}"
    settings = {"grpc": "LISTEN", "http": "HTTP_LISTEN", "metrics": "METRICS"}
    ports = {
        port: int(environment(name)[f"{prefix}_{key}"].removeprefix("0.0.0.0:"))
        for port, key in settings.items()
        if f"{prefix}_{key}" in environment(name)
    }
    grpc, metrics = ports["grpc"], ports["metrics"]
    assert ("http" in ports) == (name == "frontend")
    service = MANIFESTS[f"Service selvage-{name}"]["spec"]
    annotations = MANIFESTS[f"Deployment selvage-{name}"]["spec"]["template"]["metadata"]["annotations"]
    assert {each["name"]: each["containerPort"] for each in container(name)["ports"]} == ports
    assert {each["name"]: each["port"] for each in service["ports"]} == ports
    assert {container(name)[f"{kind}Probe"]["grpc"]["port"] for kind in ("startup", "liveness", "readiness")} == {grpc}
    assert annotations["prometheus.io/port"] == str(metrics)


def test_frontends_ask_where_workers_listen() -> None:
    [port] = [each["port"] for each in MANIFESTS["Service selvage-worker"]["spec"]["ports"] if each["name"] == "grpc"]
    assert environment("frontend")["SELVAGE_FRONTEND_WORKER"] == f"dns:///selvage-worker:{port}"


@pytest.mark.parametrize("name", SETTINGS)
def test_life_and_readiness_are_two_questions(name: str) -> None:
    """A frontend without a worker, or a worker that loads, is not ready; to restart it would not help."""
    assert "service" not in container(name)["livenessProbe"]["grpc"]
    assert container(name)["readinessProbe"]["grpc"]["service"] in SERVED[name]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_grace_period_outlasts_the_drain(name: str) -> None:
    delay = float(environment(name).get("SELVAGE_FRONTEND_DRAIN_DELAY", 0))
    assert pod(name)["terminationGracePeriodSeconds"] > SETTINGS[name].model_fields["drain_seconds"].default + delay


@pytest.mark.parametrize("name", SETTINGS)
def test_pods_are_locked_down_and_limited(name: str) -> None:
    """Read-only, without capabilities, not root; limits of memory and of what they leave in /tmp."""
    context = container(name)["securityContext"]
    assert pod(name)["securityContext"]["runAsNonRoot"] is True
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["allowPrivilegeEscalation"] is False
    assert container(name)["resources"]["limits"]["memory"]
    assert all(volume["emptyDir"]["sizeLimit"] for volume in pod(name)["volumes"])


def hpa_of(scaled_object: dict[str, Any]) -> dict[str, Any]:
    """The autoscaler that KEDA makes of a ScaledObject, as its page says; a metric of Prometheus under our name."""
    spec = scaled_object["spec"]
    config = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
    [trigger] = spec["triggers"]
    metric: dict[str, Any]
    if trigger["type"] == "cpu":
        target = {"type": trigger["metricType"], "averageUtilization": int(trigger["metadata"]["value"])}
        metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    else:
        value = f"{float(trigger['metadata']['threshold']) * 1000:.0f}m"
        target = {"type": trigger["metricType"], "value": value}
        metric = {"type": "External", "external": {"metric": {"name": "selvage_queue_seconds"}, "target": target}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": scaled_object["metadata"],
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", **spec["scaleTargetRef"]},
            "minReplicas": spec["minReplicaCount"],
            "maxReplicas": spec["maxReplicaCount"],
            "metrics": [metric],
            **config,
        },
    }


@pytest.mark.parametrize("name", SCALED_OBJECTS)
def test_keda_takes_them(name: str) -> None:
    """No key that it does not know, and no value that is not a string where its scalers want strings."""
    jsonschema.validate(SCALED_OBJECTS[name], SCALED_OBJECT)
    for trigger in SCALED_OBJECTS[name]["spec"]["triggers"]:
        jsonschema.validate(trigger["metadata"], METADATA[trigger["type"]])


@pytest.mark.parametrize("name", SETTINGS)
def test_keda_scales_as_the_autoscalers_do(name: str) -> None:
    """One takes either file. Workers never go to none: nothing would ask for the first."""
    scaled_object = SCALED_OBJECTS[f"selvage-{name}"]
    assert hpa_of(scaled_object) == MANIFESTS[f"HorizontalPodAutoscaler selvage-{name}"]
    assert scaled_object["spec"]["minReplicaCount"] >= 1


def test_workers_are_scaled_by_what_prometheus_records() -> None:
    """The rule, the adapter and both autoscalers speak of one series; KEDA changes nothing while it is absent."""
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text())
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule}
    adapter = yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text())
    [rule] = adapter["rules"]["external"]
    [metric] = MANIFESTS["HorizontalPodAutoscaler selvage-worker"]["spec"]["metrics"]
    [trigger] = SCALED_OBJECTS["selvage-worker"]["spec"]["triggers"]
    assert rule["seriesQuery"] in recorded
    assert rule["seriesQuery"] in rule["metricsQuery"]
    assert metric["external"]["metric"]["name"] == rule["name"]["as"]
    assert trigger["metadata"]["query"] == rule["metricsQuery"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
