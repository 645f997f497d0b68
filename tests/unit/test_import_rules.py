"""Who may import whom; the rules of docs/architecture.md."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import shared

ROOT = Path(__file__).parents[2]
STANDARD = set(sys.stdlib_module_names)


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
    "the worker knows no frontend": (files("gpu_worker/**/*.py"), {"frontend_service"}),
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
            "gpu_worker/ragged_batch.py",
            "gpu_worker/pooling.py",
            "gpu_worker/packing.py",
            "gpu_worker/comparisons.py",
            "gpu_worker/keeping.py",
            "gpu_worker/step.py",
            "gpu_worker/outbox.py",
            "gpu_worker/maxsim/*.py",
            "gpu_worker/heads/*.py",
            "gpu_worker/sparse.py",
            "gpu_worker/instruction.py",
            "gpu_worker/rows.py",
            "gpu_worker/progress/*.py",
        ),
        {"asyncio", "socket", "pathlib", "grpc", "os"},
    ),
    "Triton is imported with the kernel only": (
        [path for path in files("gpu_worker/**/*.py") if path.name != "tiles.py"],
        {"triton"},
    ),
    "engine, models and GPU tests need torch and transformers only": (
        files(
            "gpu_worker/engine.py",
            "gpu_worker/progress/*.py",
            "gpu_worker/heads/*.py",
            "gpu_worker/rows.py",
            "gpu_worker/step.py",
            "gpu_worker/sparse.py",
            "gpu_worker/comparisons.py",
            "gpu_worker/keeping.py",
            "gpu_worker/maxsim/*.py",
            "gpu_worker/abilities.py",
            "gpu_worker/checking.py",
            "gpu_worker/card.py",
            "gpu_worker/computing.py",
            "gpu_worker/models/*.py",
            "tests/gpu/*.py",
        ),
        {
            "grpc",
            "gpu_worker.settings",
            "gpu_worker.server",
            "shared.rpc",
            "shared.codec",
            "shared.job_codec",
            "shared.result_codec",
            "pydantic",
            "structlog",
        },
    ),
    "policy and services know no door": (
        [
            *files("shared/calls.py", "shared/request_id.py", "frontend_service/worker/protocol.py"),
            *(path for path in files("frontend_service/*.py") if path.name != "__main__.py"),
        ],
        {"grpc", "grpc_health", "google", "selvage", "frontend_service.doors", "shared.rpc", "shared.serving"},
    ),
    "doors know no worker but through the services": (
        files("frontend_service/doors/**/*.py"),
        {"frontend_service.worker"},
    ),
    "the link to the worker knows no door": (files("frontend_service/worker/*.py"), {"frontend_service.doors"}),
    "the scheduler knows no torch and no gRPC": (files("gpu_worker/scheduler.py"), {"torch", "grpc", "selvage"}),
}
EDGE = files(
    "shared/codec.py",
    "shared/job_codec.py",
    "shared/result_codec.py",
    "shared/services.py",
    "shared/rpc/*.py",
    "shared/serving.py",
    "shared/probe.py",
    "frontend_service/doors/**/*.py",
    "frontend_service/worker/connection.py",
    "frontend_service/worker/description.py",
    "frontend_service/worker/health.py",
    "frontend_service/worker/tokenizer.py",
    "gpu_worker/server.py",
    "gpu_worker/__main__.py",
)


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    """No file of the rule imports what it must not."""
    paths, banned = RULES[rule]
    assert offenders(paths, banned) == []


def test_protobuf_and_grpc_stop_at_the_edge() -> None:
    """Generated code and grpc only where messages come and go."""
    inner = set(files("shared/**/*.py", "frontend_service/**/*.py", "gpu_worker/**/*.py")) - set(EDGE)
    assert offenders(sorted(inner), {"grpc", "grpc_health", "selvage", "google"}) == []


@pytest.mark.parametrize(
    "name",
    ["shared/ragged.py", "shared/errors.py", "shared/deadline.py", "shared/offload.py", "gpu_worker/planning.py"],
)
def test_standard_library_only(name: str) -> None:
    """These run anywhere."""
    assert {each.split(".")[0] for each in imports(ROOT / name)} <= STANDARD


def test_shared_is_ours() -> None:
    """A foreign top-level package of that name would win silently."""
    assert Path(str(shared.__file__)).is_relative_to(ROOT)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("frontend_service.__main__", ["torch", "transformers", "gpu_worker"]),
        ("frontend_service.frontend", ["grpc", "grpc_health", "google", "selvage", "torch", "gpu_worker"]),
        ("gpu_worker.engine", ["grpc", "google", "structlog", "pydantic", "pydantic_settings", "triton"]),
        (
            "benchmarks.accelerator.engine",
            ["grpc", "structlog", "pydantic_settings", "rich", "aiohttp", "hdrh", "scipy"],
        ),
        ("benchmarks.accelerator.__main__", ["torch", "transformers", "grpc", "structlog", "rich"]),
        ("benchmarks.maxsim_gpu", ["grpc", "transformers", "structlog", "rich"]),
    ],
)
def test_it_imports_where_these_are_absent(module: str, absent: list[str]) -> None:
    """Each with no more than it needs: the frontend no torch, its services no gRPC, the engine nothing but torch."""
    program = f"import sys\nsys.modules.update(dict.fromkeys({absent}))\nimport {module}\n"
    path = f"{ROOT}:{ROOT / 'protos'}"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env={"PYTHONPATH": path})
