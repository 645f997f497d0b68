"""Who may import whom; the rules of docs/architecture.md."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import shared

ROOT = Path(__file__).parents[2]
STANDARD = set(sys.stdlib_module_names)


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


def files(*patterns: str) -> list[Path]:
    found = {pattern: sorted(ROOT.glob(pattern)) for pattern in patterns}
    assert all(found.values()), "a rule names files that are not there"
    return [path for paths in found.values() for path in paths]


def offenders(paths: list[Path], banned: set[str]) -> list[str]:
    """`file: import` for every import of a banned package or module, or of something below one."""
    return [
        f"{path.relative_to(ROOT)}: {name}"
        for path in paths
        for name in sorted(imports(path))
        if any(name == each or name.startswith(f"{each}.") for each in banned)
    ]


RULES = {
    "the frontend knows no torch and no worker": (
        files("frontend_service/**/*.py"),
        {"torch", "transformers", "gpu_worker"},
    ),
    "the worker knows no frontend and no harness": (files("gpu_worker/**/*.py"), {"frontend_service", "harness"}),
    "shared knows neither side": (
        files("shared/**/*.py"),
        {"frontend_service", "gpu_worker", "torch", "transformers", "tokenizers"},
    ),
    "the tokenizer is the export module's alone": (
        [path for path in files("gpu_worker/**/*.py") if path.name != "tokenizer.py"],
        {"tokenizers", "transformers.AutoTokenizer"},
    ),
    "tensors do no I/O": (
        files(
            "gpu_worker/ragged/*.py",
            "gpu_worker/model/heads/*.py",
            "gpu_worker/engine/step/*.py",
            "gpu_worker/engine/jobs/*.py",
            "gpu_worker/kernels/maxsim/*.py",
        ),
        {"asyncio", "socket", "pathlib", "grpc", "os"},
    ),
    "Triton is imported with the kernel only": (
        [path for path in files("gpu_worker/**/*.py") if path.name != "tiles.py"],
        {"triton"},
    ),
    "all but the edge of the worker, and GPU tests, need torch and transformers only": (
        [
            path
            for path in files("gpu_worker/**/*.py", "tests/gpu/*.py")
            if path.name not in ("__main__.py", "settings.py", "server.py", "driver.py", "worker.py", "check.py")
            and path.parent.name != "link"
        ],
        {
            "grpc",
            "gpu_worker.settings",
            "gpu_worker.link.server",
            "shared.server.options",
            "shared.server.interceptor",
            "shared.server.status",
            "shared.value_codec",
            "shared.link_codec",
            "pydantic",
            "structlog",
        },
    ),
    "of the benchmarks one file drives the worker's engine, another its kernels": (
        [
            path
            for path in files("benchmarks/**/*.py")
            if path.name not in ("ours.py", "our_kernels.py", "instant_worker.py")
        ],
        {"gpu_worker"},
    ),
    "the worker that answers at once has the worker's link and driver, and no engine": (
        files("benchmarks/instant_worker.py"),
        {"torch", "transformers", *(f"gpu_worker.{room}" for room in ("engine", "model", "kernels", "worker"))},
    ),
    "Prometheus is known to the files of metrics, OpenTelemetry to that of spans": (
        [
            path
            for path in files("shared/**/*.py", "frontend_service/**/*.py", "gpu_worker/**/*.py")
            if path.name not in ("metrics.py", "spans.py")
        ],
        {"prometheus_client", "opentelemetry"},
    ),
    "the libraries of HTTP are known to its API": (
        [
            path
            for path in files("shared/**/*.py", "frontend_service/**/*.py", "gpu_worker/**/*.py")
            if ROOT / "frontend_service" / "api" / "http" not in path.parents
        ],
        {"httptools", "msgspec", "orjson", "pybase64", "starlette", "uvicorn"},
    ),
    "metrics know no traces": (files("shared/metrics.py"), {"opentelemetry"}),
    "traces know no metrics": (files("shared/spans.py"), {"prometheus_client"}),
    "policy and services know no API": (
        [
            *files(
                "shared/server/admission.py",
                "shared/server/calls.py",
                "shared/caller.py",
                "shared/metrics.py",
                "shared/spans.py",
                "shared/reporting.py",
            ),
            *files(
                "frontend_service/access/*.py",
                "frontend_service/frontend.py",
                "frontend_service/domain/*.py",
                "frontend_service/postprocess.py",
                "frontend_service/services/*.py",
                "frontend_service/tokenizing/**/*.py",
            ),
        ],
        {
            "grpc",
            "grpc_health",
            "google",
            "selvage",
            "tei",
            "frontend_service.api",
            "shared.server.options",
            "shared.server.interceptor",
            "shared.server.status",
            "shared.server.grpc_server",
        },
    ),
    "APIs know no worker but through the services": (
        files("frontend_service/api/**/*.py"),
        {"frontend_service.workers"},
    ),
    "the link to the worker knows no API": (files("frontend_service/workers/*.py"), {"frontend_service.api"}),
    "the client imports nothing else of ours": (
        files("client/selvage/**/*.py"),
        {"embedded", "shared", "frontend_service", "gpu_worker", "harness", "torch"},
    ),
    "what the client's calls return and raise knows no messages": (
        files(*(f"client/selvage/{name}.py" for name in ("results", "errors"))),
        {"selvage.messages", "selvage.calls", "selvage.v1"},
    ),
    "the services know no client, only its generated code": (
        files("shared/**/*.py", "frontend_service/**/*.py", "gpu_worker/**/*.py"),
        {f"selvage.{path.stem}" for path in files("client/selvage/*.py")}
        | {"selvage.bulk", "selvage.calls", "selvage.clusters", "selvage.messages", "embedded"},
    ),
    "Ray and Daft are known to a file each": (
        [path for path in files("client/selvage/**/*.py") if path.name not in ("ray.py", "daft.py")],
        {"ray", "daft"},
    ),
    "the services of an engine know no client": (files("embedded/services.py"), {"grpc", "selvage"}),
    "attachments know no transport": (
        [path for path in files("gpu_worker/link/*.py") if path.name != "server.py"],
        {"torch", "grpc", "shared.server.options", "shared.server.interceptor", "shared.server.status"},
    ),
    "the driver of the scheduler knows no torch and no gRPC": (
        files("gpu_worker/schedule/driver.py"),
        {"torch", "grpc", "selvage"},
    ),
    "the scheduler knows no torch, no asyncio and no logs": (
        [path for path in files("gpu_worker/schedule/*.py") if path.name != "driver.py"],
        {"torch", "numpy", "asyncio", "grpc", "selvage", "structlog"},
    ),
}
EDGE = files(
    "shared/link_codec.py",
    "shared/value_codec.py",
    "shared/server/options.py",
    "shared/server/interceptor.py",
    "shared/server/grpc_server.py",
    "shared/server/status.py",
    "shared/server/probe.py",
    "frontend_service/api/**/*.py",
    "frontend_service/workers/link.py",
    "frontend_service/workers/job_stream.py",
    "frontend_service/workers/transport.py",
    "gpu_worker/link/*.py",
    "gpu_worker/__main__.py",
)


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    """No file of the rule imports what it must not."""
    paths, banned = RULES[rule]
    assert offenders(paths, banned) == []


def rooms() -> dict[str, set[str]]:
    """Folders of the worker, and the folders that each imports."""
    found: dict[str, set[str]] = {}
    for path in files("gpu_worker/**/*.py"):
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
    """docs/architecture.md has each room with the rooms that it imports, and nothing goes round in a circle."""
    lines = (ROOT / "docs" / "architecture.md").read_text().splitlines()
    start = lines.index("| room | imports | knows |") + 2
    drawn = {}
    for line in lines[start : lines.index("", start)]:
        room, others = (cell.strip() for cell in line.split("|")[1:3])
        drawn["." if room == "the edge" else room.strip("`").rstrip("/")] = set(filter(None, others.split(", ")))
    found = rooms()
    assert drawn == found
    left = dict(found)
    while left:
        free = [room for room, others in left.items() if not others & set(left)]
        assert free, f"a circle among {sorted(left)}"
        for room in free:
            del left[room]


def test_no_room_holds_a_quarter_of_the_worker() -> None:
    lines = dict.fromkeys(rooms(), 0)
    for path in files("gpu_worker/**/*.py"):
        lines[str(path.parent.relative_to(ROOT / "gpu_worker"))] += len(path.read_text().splitlines())
    assert max(lines.values()) <= sum(lines.values()) / 4


def test_protobuf_and_grpc_stop_at_the_edge() -> None:
    """Generated code and grpc only where messages come and go."""
    inner = set(files("shared/**/*.py", "frontend_service/**/*.py", "gpu_worker/**/*.py")) - set(EDGE)
    assert offenders(sorted(inner), {"grpc", "grpc_health", "selvage", "tei", "google"}) == []


BARE = files(
    "shared/vectors.py",
    "shared/jobs.py",
    "shared/load.py",
    "shared/errors.py",
    "shared/tasks.py",
    "shared/terms.py",
    *(f"gpu_worker/schedule/{name}.py" for name in ("fair_queue", "priority_class", "load")),
    "gpu_worker/schedule/interface.py",
)


@pytest.mark.parametrize("path", BARE, ids=lambda path: str(path.relative_to(ROOT)))
def test_standard_library_only(path: Path) -> None:
    """These run anywhere: they import it, and each other."""
    known = {str(each.relative_to(ROOT).with_suffix("")).replace("/", ".") for each in BARE}
    foreign = {each for each in imports(path) if each.split(".")[0] not in STANDARD}
    assert {each for each in foreign if not any(f"{each}.".startswith(f"{name}.") for name in known)} == set()


def test_shared_is_ours() -> None:
    """A foreign top-level package of that name would win silently."""
    assert Path(str(shared.__file__)).is_relative_to(ROOT)


OF_BOTH = ["prometheus_client", "opentelemetry"]
OF_THE_ENGINE = ["grpc", "google", "structlog", "pydantic", "pydantic_settings", "triton", "rich", "aiohttp", "scipy"]
STEPS = [
    [
        ("frontend_service.frontend", ["grpc", "grpc_health", "google", "selvage", "tei"]),
        ("frontend_service.__main__", ["torch", "transformers", "gpu_worker", *OF_BOTH]),
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
