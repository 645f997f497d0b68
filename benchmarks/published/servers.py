"""Both servers, started alone on the same cores: their programs, when they are ready, their processes.

What a server is asked is none of this file's business.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.load.processor import family, is_running
from benchmarks.machine import ROOT
from benchmarks.peers.infinity import wait_healthy
from benchmarks.peers.process import free_port, modules_of
from benchmarks.published.model import MODELS, folder_of
from benchmarks.published.rows import OURS, VLLM, Row

VENV = ROOT / ".venv-vllm"
PROGRAM = VENV / "bin" / "vllm"
START_SECONDS, STOP_SECONDS, POLL = 900.0, 30.0, 0.05
"""Seconds within which a server must be ready, which includes vLLM's compiling at its first start, and within which it
must be gone; seconds between two looks at whether it is gone."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}
PATIENT_WORKER, PATIENT_FRONTEND = ("--queue-seconds=0",), ("--default-timeout=600", "--max-requests-at-once=4096")
"""Nothing is refused, as vLLM refuses nothing. By default a call has 30 s; here 4 clients of 8,192 tokens take more."""
CACHE = {"VLLM_CPU_KVCACHE_SPACE": "5"}
"""GiB of keys and values that vLLM keeps: 46,000 tokens of Qwen3-0.6B, so that all texts of a row fit at once."""
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""Has vLLM's PyTorch ask for huge pages, as our worker does."""
PRELOADED = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"), ("libiomp5.so",)
"""Libraries that vLLM's manual wants loaded before all others, the first that is there of each kind."""
LIBRARIES = (VENV / "lib", *map(Path, ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")))
LAST_LINES = 10
"""Lines at the end of the log that are shown for a server that did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a server starts: its programs by name, the environment on top of ours, its URL, the flags of its setting."""

    programs: Mapping[str, Sequence[str | Path]]
    environment: Mapping[str, str] = field(default_factory=dict)
    url: str
    flags: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyServer:
    """A server that is ready. `pids`: its processes by name."""

    url: str
    pids: Mapping[str, int]


def launches(row: Row, cores: Sequence[int]) -> dict[str, Launch]:
    """Lists the sides of a row by name: ours, and vLLM with each of its settings."""
    sides = {OURS: ours(row, len(cores))}
    for setting, flags in row.vllm.items():
        sides[f"{VLLM}, {setting}" if setting else VLLM] = vllm(row, flags, cores)
    return sides


def ours(row: Row, threads: int) -> Launch:
    """Launches a worker, and a frontend that serves HTTP."""
    worker, front, web = (f"127.0.0.1:{free_port()}" for _ in range(3))
    model = ("--model", str(folder_of(row)), "--served-name", row.served_name, "--dtype", row.dtype)
    sizes = ("--max-tokens", str(row.max_tokens), "--threads", str(threads))
    python = (sys.executable, "-m")
    return Launch(
        programs={
            "worker": (*python, "gpu_worker", *model, *sizes, *PATIENT_WORKER, "--listen", worker, *row.ours),
            "frontend": (
                *(*python, "frontend_service", "--worker", worker, "--listen", front, *PATIENT_FRONTEND),
                *("--http-listen", web),
            ),
        },
        environment=modules_of(ROOT),
        url=f"http://{web}",
        flags=row.ours,
    )


def vllm(row: Row, flags: Sequence[str], cores: Sequence[int]) -> Launch:
    """Launches vLLM on the same files. Exits where `make vllm` has not installed it."""
    if not PROGRAM.is_file():
        sys.exit(f"{PROGRAM} is not there; `make vllm` sets it up")
    port = str(free_port())
    command: list[str | Path] = [PROGRAM, "serve", folder_of(row)]
    command += ["--runner", "pooling", "--dtype", row.dtype, "--max-model-len", str(row.max_tokens)]
    command += ["--served-model-name", row.served_name, "--host", "127.0.0.1", "--port", port]
    command += ["--disable-uvicorn-access-log", *flags]
    if row.kind == "tokens":
        command += ["--pooler-config", '{"task": "token_embed"}']
    places = ([folder / name for name in names for folder in LIBRARIES] for names in PRELOADED)
    preloaded = [present[0] for paths in places if (present := [path for path in paths if path.is_file()])]
    return Launch(
        programs={"vllm": command},
        environment={
            "PYTHONPATH": "",
            "LD_PRELOAD": ":".join(map(str, preloaded)),
            **CACHE,
            **HUGE_PAGES,
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        },
        url=f"http://127.0.0.1:{port}",
        flags=flags,
    )


@contextmanager
def started(name: str, launch: Launch) -> Iterator[ReadyServer]:
    """Starts all programs of a side; yields when it is ready, and ends them. Exits where it does not become ready."""
    log = MODELS / "logs" / f"{name.replace(' ', '-').replace(',', '')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as cleanup:
        lines = cleanup.enter_context(log.open("w"))
        programs = {
            program: cleanup.enter_context(_program(command, launch.environment, lines.fileno()))
            for program, command in launch.programs.items()
        }
        try:
            wait_healthy(launch.url, name, programs, START_SECONDS)
        except SystemExit as error:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
            sys.exit(f"{error.code}\n{tail}\n({log})")
        pids = {
            member: pid for program, process in programs.items() for member, pid in family(process.pid, program).items()
        }
        yield ReadyServer(url=launch.url, pids=pids)


@contextmanager
def _program(
    command: Sequence[str | Path], environment: Mapping[str, str], output: int
) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs a program in a session of its own, so that all its processes end with it."""
    variables = {**os.environ, **OFFLINE, **environment}
    process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        members = family(process.pid, "").values()
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it started and did not end
        process.wait()
        until = time.monotonic() + STOP_SECONDS
        while any(map(is_running, members)) and time.monotonic() < until:
            time.sleep(POLL)  # the next server wants their cores and memory
