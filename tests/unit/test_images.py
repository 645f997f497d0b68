"""The Dockerfiles and what compose.yaml makes of their images: promises that hold without an engine."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
WORKERS = ("worker-gpu", "worker-gpu-2", "worker-cpu")
DOCKERFILES = {"frontend": "frontend.Dockerfile", "worker": "worker.Dockerfile", "proxy": "proxy/Dockerfile"}


def instructions(image: str, word: str) -> list[str]:
    """The arguments of every instruction of one kind, in order."""
    text = (ROOT / "deploy" / DOCKERFILES[image]).read_text()
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [line.removeprefix(word).strip() for line in lines if line.startswith(f"{word} ")]


@pytest.mark.parametrize("image", DOCKERFILES)
def test_images_run_as_a_numbered_user_who_is_not_root(image: str) -> None:
    """The last USER counts, and a name would not show whose number it is."""
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", instructions(image, "USER")[-1])


@pytest.mark.parametrize("image", DOCKERFILES)
def test_images_are_labelled(image: str) -> None:
    """With the keys of the OCI's image specification; a licence is added when one is chosen."""
    [label] = instructions(image, "LABEL")
    labels = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', label))
    assert set(labels) == {"title", "description", "version", "revision", "base.name"}
    assert labels["title"] == f"Selvage {image}"
    arguments = {name.partition("=")[0] for name in instructions(image, "ARG")}
    assert arguments >= {name for value in labels.values() for name in re.findall(r"\$\{(\w+)\}", value)}
    builds = [service["build"] for service in SERVICES.values() if image in service.get("image", "")]
    assert builds
    assert all("COMMIT" in build["args"] for build in builds)


@pytest.mark.parametrize("name", WORKERS)
def test_models_of_the_hub_are_kept(name: str) -> None:
    """The volume lies where the worker's image tells the hub's client to put them."""
    assert f"HF_HOME={SERVICES[name]['volumes'][0].partition(':')[2]}" in instructions("worker", "ENV")
    assert "models" in COMPOSE["volumes"]


@pytest.mark.parametrize(("name", "image"), [("frontend", "frontend"), *((name, "worker") for name in WORKERS)])
def test_a_service_is_built_from_its_dockerfile_and_runs_its_module(name: str, image: str) -> None:
    assert SERVICES[name]["build"]["dockerfile"] == f"deploy/{image}.Dockerfile"
    module = {"frontend": "frontend_service", "worker": "gpu_worker"}[image]
    assert instructions(image, "ENTRYPOINT") == [f'["python", "-m", "{module}"]']


@pytest.mark.parametrize("image", ["frontend", "worker"])
def test_packages_are_installed_by_their_hashes(image: str) -> None:
    """Of locks only; but torch, whose file depends on the index."""
    locked, *torch, own = [step for step in instructions(image, "RUN") if step.startswith("pip")]
    assert {"--require-hashes", "--no-deps"} <= set(locked.split())
    assert f"{image}.txt" in locked
    assert [step.split()[-1] for step in torch] == (["torch"] if image == "worker" else [])
    assert all("--constraint constraints.txt" in step for step in torch)
    assert own == "pip install --no-index --no-deps --no-build-isolation ."


def test_the_build_context_holds_every_package_and_little_else() -> None:
    """It is a list of what is let in."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = [package.rstrip("*") for package in tool["packages"]["find"]["include"]]
    folders = {tool["package-dir"].get(package, package).partition("/")[0] for package in packages}
    assert lines[0] == "*"
    assert {f"!{name}" for name in folders | {"pyproject.toml", "constraints.txt", "deploy/locks", "README.md"}} == {
        line for line in lines if line.startswith("!")
    }
