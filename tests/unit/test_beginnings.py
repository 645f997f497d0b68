"""How commands begin: without their packages they name the extra, and Ctrl-C while they load leaves no traceback."""

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.environment import ROOT, python_path
from support.bulk_fakes import jsonl

PROGRAMS = {
    "gpu_worker": ("worker", "transformers"),
    "frontend_service": ("frontend", "structlog"),
    "frontend_service.access.new_key": ("frontend", "structlog"),
    "gpu_worker.kernels.cpu.build": ("worker", "torch"),
    "harness.supported_models": ("worker", "torch"),
    "harness.random_models": ("worker", "torch"),
    "harness": ("demo", "grpc"),
    "demo": ("demo", "rich"),
}
"""The extra that each command needs, and a package that it imports."""
HELD = "import time\nfor _ in range(12_000):\n    time.sleep(0.05)\n"
"""Ten minutes in short sleeps: Python notices a signal that comes just before a sleep when that sleep has ended."""
BLOCKED = f'print("importing", flush=True)\n{HELD}'


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_its_packages_a_command_names_the_extra(name: str) -> None:
    """As in a fresh clone, with the Python of the system: nothing but the standard library is there."""
    command = [sys.executable, "-S", "-m", name, "--help"]
    ended = subprocess.run(command, cwd=ROOT, env={}, capture_output=True, text=True, check=False)
    extra = PROGRAMS[name][0]
    told = rf"No module named '\w+': the extra {extra} brings it \(in a checkout, pip install '\.\[{extra}\]'\)\n"
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(told, ended.stderr)


@pytest.mark.parametrize("name", ["gpu_worker", "frontend_service", "harness", "selvage.bulk"])
def test_ctrl_c_while_a_command_imports_leaves_no_traceback(name: str, tmp_path: Path) -> None:
    """The imports take seconds on a cold disk. One of the packages waits here until somebody loses patience."""
    package = PROGRAMS[name][1] if name in PROGRAMS else "grpc"
    (tmp_path / f"{package}.py").write_text(BLOCKED)
    process = started(name, packages=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    assert interrupted(process) == (130, "", "")


@pytest.mark.parametrize("name", ["harness", "demo"])
def test_ctrl_c_while_a_service_loads_ends_it_and_whoever_started_it(name: str, tmp_path: Path) -> None:
    """The worker, in a session of its own, waits in an import; it holds a pipe open as long as it lives."""
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    opened = f"alive = open({str(pipe)!r}, 'wb', buffering=0)\nalive.write(b'x')\n"
    (tmp_path / "transformers.py").write_text(f"{opened}{HELD}")
    process = started(name, packages=tmp_path)
    assert select.select([reading], [], [], 240)[0], "no worker was started"
    status, told, errors = interrupted(process)
    assert (status, errors) == (130, "")
    assert told.startswith("Starting ")
    assert os.read(reading, 2) == b"x"
    assert os.read(reading, 2) == b"", "the worker has ended"  # a pipe that somebody could still write to has no end
    os.close(reading)


def test_ctrl_c_while_the_bulk_command_waits_for_a_target(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["one"])
    flags = [source, "--output", str(tmp_path / "o"), "--target", "127.0.0.1:1"]
    process = started("selvage.bulk", *flags)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("waiting up to 600 s for 127.0.0.1:1: ")
    assert interrupted(process) == (130, "", "Stopped; the same command goes on.\n")


def started(name: str, *flags: str, packages: Path | None = None) -> "subprocess.Popen[str]":
    """A command that runs; `packages`: a folder of modules that it imports in place of others."""
    path = os.pathsep.join([*([str(packages)] if packages else []), python_path()])
    return subprocess.Popen(
        [sys.executable, "-m", name, *flags],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupted(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Status, output and errors of a command after Ctrl-C."""
    process.send_signal(signal.SIGINT)
    told, errors = process.communicate()
    return process.returncode, told, errors
