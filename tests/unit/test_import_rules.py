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
    "of the benchmarks one file drives the worker's engine": (
        [path for path in files("benchmarks/**/*.py") if path.name != "ours.py"],
        {"gpu_worker"},
    ),
    "the service knows no protobuf and no gRPC": (
        files(
            "frontend_service/service.py",
            "frontend_service/classification.py",
            "frontend_service/embedding.py",
            "frontend_service/settling.py",
            "frontend_service/requests.py",
            "frontend_service/limits.py",
            "frontend_service/pairs.py",
            "frontend_service/token*.py",
        ),
        {"grpc", "google", "selvage"},
    ),
    "the scheduler knows no torch and no gRPC": (files("gpu_worker/scheduler.py"), {"torch", "grpc", "selvage"}),
}
EDGE = {
    "codec.py",
    "job_codec.py",
    "result_codec.py",
    "server.py",
    "worker_client.py",
    "rpc.py",
    "serving.py",
    "__main__.py",
    "probe.py",
}


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    """No file of the rule imports what it must not."""
    paths, banned = RULES[rule]
    assert offenders(paths, banned) == []


def test_protobuf_and_grpc_stop_at_the_edge() -> None:
    """Generated code and grpc only where messages come and go."""
    paths = files("shared/*.py", "frontend_service/**/*.py", "gpu_worker/**/*.py")
    inner = [path for path in paths if path.name not in EDGE and path.parent.name != "codec"]
    assert offenders(inner, {"grpc", "selvage", "google"}) == []


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
        ("gpu_worker.engine", ["grpc", "google", "structlog", "pydantic", "pydantic_settings", "triton"]),
        ("benchmarks.accelerator", ["grpc", "google", "structlog", "pydantic_settings", "rich", "aiohttp", "scipy"]),
        ("benchmarks.__main__", ["torch", "transformers", "grpc", "structlog", "rich"]),
    ],
)
def test_it_imports_where_these_are_absent(module: str, absent: list[str]) -> None:
    """The frontend's whole program without torch; the engine with torch and transformers only, as for measuring."""
    program = f"import sys\nsys.modules.update(dict.fromkeys({absent}))\nimport {module}\n"
    path = f"{ROOT}:{ROOT / 'protos'}"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env={"PYTHONPATH": path})
