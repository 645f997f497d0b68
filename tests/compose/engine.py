"""A container engine and its compose, as `prove.py` drives them: what the environment chose, and their verbs."""

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKER = os.environ.get("DOCKER", "docker")
BUILD = shlex.split(os.environ.get("SELVAGE_BUILD", f"{DOCKER} build"))
REGISTRY = os.environ.get("REGISTRY", "")
MONITORED = "PROMETHEUS_IMAGE" in os.environ
IMAGES = {
    "proxy": ["deploy/proxy"],
    "frontend": ["--file", "deploy/frontend.Dockerfile", "."],
    "worker-cpu": [
        *("--file", "deploy/worker.Dockerfile"),
        *("--build-arg", "TORCH_INDEX=" + os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu"), "."),
    ],
}
STARTED = time.monotonic()


def say(line: str) -> None:
    print(f"{time.monotonic() - STARTED:6.1f} s  {line}", flush=True)


def run(command: Sequence[str], *, cwd: Path = ROOT) -> str:
    """What it prints; raises with that where it fails."""
    done = subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed with {done.returncode}:\n{done.stdout}")
    return done.stdout


def run_quietly(command: Sequence[str]) -> int:
    """Its exit status."""
    return subprocess.run(command, capture_output=True, check=False).returncode


def missing_engine() -> str:
    """Why nothing can be proved here, or nothing."""
    if shutil.which(DOCKER) is None:
        return f"there is no {DOCKER}"
    if run_quietly([DOCKER, "info"]):
        return f"no engine answers `{DOCKER} info`"
    if compose_program() is None:
        return "there is no docker compose"
    return ""


def compose_program() -> list[str] | None:
    if chosen := os.environ.get("COMPOSE"):
        return shlex.split(chosen)
    if shutil.which(DOCKER) and not run_quietly([DOCKER, "compose", "version"]):
        return [DOCKER, "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


class Compose:
    """The project of this run."""

    def __init__(self) -> None:
        self.program = compose_program() or []
        os.environ["COMPOSE_PROJECT_NAME"] = "selvage-proof"
        os.environ["COMPOSE_PROFILES"] = "cpu"

    def __call__(self, *arguments: str) -> str:
        return run([*self.program, *arguments])

    def ids(self, service: str) -> list[str]:
        return self("ps", "-q", service).split()

    def up(self, *more: str) -> None:
        services = ["proxy", "frontend", "worker-cpu", *(["prometheus"] if MONITORED else [])]
        profile = ["--profile", "monitoring"] if MONITORED else []
        run([*self.program, "--profile", "cpu", *profile, "up", "-d", "--no-build", "--no-recreate", *more, *services])


compose = Compose()


def build(root: Path, names: Sequence[str]) -> None:
    for name in names:
        start = time.monotonic()
        printed = run([*BUILD, "--tag", f"{REGISTRY}selvage-{name}:latest", *IMAGES[name]], cwd=root)
        fetched = len(re.findall(r"^\s*(?:#\d+ [\d.]+ )?Downloading ", printed, re.M))
        size = int(run([DOCKER, "image", "inspect", "--format", "{{.Size}}", f"{REGISTRY}selvage-{name}:latest"]))
        say(f"built {name}: {time.monotonic() - start:.0f} s, {size / 1e6:,.0f} MB, {fetched} packages fetched")
        if root != ROOT:
            assert not fetched, printed


def inspect(container: str, template: str) -> str:
    return run([DOCKER, "inspect", "--format", template, container]).strip()


def inside(container: str, code: str) -> str:
    """Python in a container, as its own user."""
    return run([DOCKER, "exec", container, "python", "-c", code]).strip()


def until(promise: str, holds: Callable[[], bool], seconds: float = 180) -> float:
    """Returns after how many seconds it held."""
    start = time.monotonic()
    while not holds():
        assert time.monotonic() - start < seconds, f"{promise}: not within {seconds} s"
        time.sleep(0.2)
    return time.monotonic() - start
