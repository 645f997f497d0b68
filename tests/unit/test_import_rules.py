"""Who may import whom: the contracts of pyproject.toml, and the rooms that docs/architecture.md draws."""

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON_PATH = f"{ROOT}{os.pathsep}{ROOT / 'client'}"


def test_the_contracts_are_kept() -> None:
    """Those of `tool.importlinter`; the report names the import that breaks one."""
    linter = Path(sys.executable).with_name("lint-imports")
    environment = os.environ | {"PYTHONPATH": PYTHON_PATH}
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def imports(path: Path) -> set[str]:
    """Dotted names of everything that a file imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms() -> dict[str, set[str]]:
    """Folders of the worker, and the folders that each imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(ROOT.glob("gpu_worker/**/*.py")):
        own = str(path.parent.relative_to(ROOT / "gpu_worker"))
        known = found.setdefault(own, set())
        for name in imports(path):
            package, *parts = name.split(".")
            folders = ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
            there = next((each for each in folders if (ROOT / "gpu_worker" / each).is_dir()), ".")
            if package == "gpu_worker" and parts and there != own:
                known.add(there)
    return found


def test_the_rooms_of_the_worker_are_drawn_as_they_are() -> None:
    """docs/architecture.md has each room with the rooms that it imports."""
    lines = (ROOT / "docs" / "architecture.md").read_text().splitlines()
    start = lines.index("| package | imports | knows |") + 2
    drawn = {}
    for line in lines[start : lines.index("", start)]:
        room, others = (cell.strip() for cell in line.split("|")[1:3])
        drawn["." if room == "the edge" else room.strip("`").rstrip("/")] = set(filter(None, others.split(", ")))
    found = rooms()
    assert drawn == found


OF_BOTH = ["prometheus_client", "opentelemetry"]
OF_THE_ENGINE = [
    "grpc",
    "google",
    "structlog",
    "pydantic",
    "pydantic_settings",
    "triton",
    "rich",
    "aiohttp",
    "threadpoolctl",
]
STEPS = [
    [
        ("frontend_service.frontend", ["grpc", "grpc_health", "google", "selvage", "tei"]),
        ("frontend_service.__main__", ["torch", "transformers", "scipy", "gpu_worker", *OF_BOTH]),
    ],
    [
        ("gpu_worker.engine.engine, benchmarks.accelerator.run", OF_THE_ENGINE),
        ("gpu_worker.__main__", ["frontend_service", *OF_BOTH]),
    ],
    [("benchmarks.__main__", ["torch", "transformers", "grpc", "structlog", "rich"])],
]
"""Modules, and what is absent while they and all that stand before them are imported: one process, since that of torch
takes seconds."""


@pytest.mark.parametrize("steps", STEPS, ids=lambda steps: steps[-1][0])
def test_it_imports_where_these_are_absent(steps: list[tuple[str, list[str]]]) -> None:
    """Each with no more than it needs: the frontend no torch, its services no gRPC, the engine nothing but torch."""
    program = ["import sys", f"sys.modules.update(dict.fromkeys({[name for _, absent in steps for name in absent]}))"]
    for modules, absent in steps:
        program += [f"import {modules}", f"for name in {absent}: del sys.modules[name]"]
    path = f"{ROOT}:{ROOT / 'client'}"
    subprocess.run([sys.executable, "-c", "\n".join(program)], check=True, cwd=ROOT, env={"PYTHONPATH": path})
