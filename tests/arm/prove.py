"""Proves that the pair runs on an ARM of 64 bits, under QEMU's user mode: `make arm`, an hour and a half.

Makes in .venv-arm what such a machine would have: Debian's Python, the packages of both images by their locks, and
PyTorch. Builds the kernels with a cross compiler; runs `--check` and the kernels' tests; asks a pair on ARM and a pair
on this processor the same, and fails where their answers differ by more than TOLERANCE. Nothing here measures a speed.

    TORCH_INDEX     where PyTorch comes from (default: PyPI, whose wheel for ARM brings 4 GB of CUDA)
    ARM_TESTS       files of tests that run on ARM; none where it is empty (default: those of the kernels)
"""

import asyncio
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness.member import ServiceProcess
from selvage import AsyncClient
from shared.server.options import PUBLIC_SERVICES, WORKER_SERVICES

ROOT = Path(__file__).resolve().parents[2]
ARM = ROOT / ".venv-arm"
SYSTEM, PYTHON = ARM / "system", ARM / "python"
PROGRAMS = {
    "qemu-aarch64-static": "qemu-user-static",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "mmdebstrap": "mmdebstrap",
}
"""What this needs of the machine, with the packages of Debian that have it."""
LOCKS = [f"deploy/locks/{name}.txt" for name in ("worker", "frontend", "minilm")]
TEST_PACKAGES = ["pytest", "pytest-asyncio", "pytest-timeout", "hypothesis"]
TESTS = "test_native_rows.py test_native_layers.py test_maxsim.py test_int8.py test_native_attention.py"
TORCH_INDEX = os.environ.get("TORCH_INDEX", "")
CHOSEN = TORCH_INDEX.encode() + b"".join((ROOT / file).read_bytes() for file in (*LOCKS, "constraints.txt"))
PACKAGES = ARM / f"packages-{hashlib.sha256(CHOSEN).hexdigest()[:12]}"
ARM_TESTS = os.environ.get("ARM_TESTS", " ".join(f"tests/unit/worker/{name}" for name in TESTS.split()))

PROCESSOR, CORES = "neoverse-n1", 2
"""An ARM without SVE, BF16 and I8MM."""
MIDR = "0x00000000413fd0c1"
CPUINFO = """processor\t: {core}
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""
"""As Linux describes that processor. QEMU 7 shows this machine's files instead, and PyTorch then ends in a fault."""

TEXTS = ["a quiet harbour", "Boats lie in the harbour until the storm has passed.", "a loud kitchen"]
QUERY = "where do ships wait for better weather?"
TOLERANCE = 2e-5
"""Of numbers of unit vectors, and of scores: both sides sum in float32, in other orders."""
PATIENCE = 3600.0
STARTED = time.monotonic()


def say(line: str) -> None:
    print(f"{time.monotonic() - STARTED:7.1f} s  {line}", flush=True)


def run(*command: object, **environment: str) -> None:
    """Shows what it prints; ends with 1 where it fails."""
    words = [str(word) for word in command]
    say(shlex.join(words))
    if subprocess.run(words, cwd=ROOT, env=os.environ | environment, check=False).returncode:
        raise SystemExit(f"failed: {shlex.join(words)}")


def make_system() -> None:
    """Debian's Python 3.11 and the libraries of C++ for ARM, unpacked only: nothing of it runs while it is made."""
    if SYSTEM.exists():
        return
    draft = SYSTEM.with_name("draft")
    shutil.rmtree(draft, ignore_errors=True)
    run(
        *("mmdebstrap", "--quiet", "--variant=extract", "--architectures=arm64"),
        *("--include=python3.11,libpython3.11,libstdc++6,libgomp1,ca-certificates", "bookworm", draft),
    )
    cores = draft / "sys/devices/system/cpu"
    shown = {cores / name: f"0-{CORES - 1}" for name in ("possible", "present", "online")}
    for core in range(CORES):
        own = cores / f"cpu{core}"
        shown[own / "regs/identification/midr_el1"] = MIDR
        shown |= {own / "topology/physical_package_id": "0", own / "topology/cluster_cpus_list": f"0-{CORES - 1}"}
    shown[draft / "proc/cpuinfo"] = "\n".join(CPUINFO.format(core=core) for core in range(CORES))
    for path, content in shown.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    draft.rename(SYSTEM)


def make_packages() -> None:
    """The images' packages by their locks, PyTorch, and what tests need, as pip finds them for ARM."""
    if PACKAGES.exists():
        return
    draft = PACKAGES.with_name("draft-of-packages")
    shutil.rmtree(draft, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    tags = [f"manylinux_2_{glibc}_aarch64" for glibc in range(17, 37)] + ["manylinux2014_aarch64"]
    pip += ["--target", str(draft), "--only-binary=:all:", "--python-version=3.11", "--implementation=cp"]
    pip += [*(f"--abi={abi}" for abi in ("cp311", "abi3", "none")), *(f"--platform={tag}" for tag in tags)]
    run(*pip, "--no-deps", "--require-hashes", *(word for lock in LOCKS for word in ("--requirement", lock)))
    run(*pip, "--constraint", "constraints.txt", *(["--index-url", TORCH_INDEX] if TORCH_INDEX else []), "torch")
    run(*pip, "--constraint", "constraints.txt", *TEST_PACKAGES)
    draft.rename(PACKAGES)


def make_python() -> None:
    """The interpreter, as a program that can be started like any other."""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "client", PACKAGES)))
    qemu = shlex.join(["qemu-aarch64-static", "-cpu", PROCESSOR, "-L", str(SYSTEM), f"{SYSTEM}/usr/bin/python3.11"])
    PYTHON.write_text(f'#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH={shlex.quote(path)} exec {qemu} "$@"\n')
    PYTHON.chmod(PYTHON.stat().st_mode | stat.S_IXUSR)


async def answers(python: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The card of MiniLM, and what a pair answers that this interpreter runs."""
    worker = ServiceProcess("gpu_worker", WORKER_SERVICES, {"model": "minilm", "device": "cpu"}, python=python)
    members = [worker]
    try:
        await worker.start()
        front = ServiceProcess("frontend_service", PUBLIC_SERVICES, {"worker": worker.address}, python=python)
        members.append(front)
        await front.start()
        for member in members:
            await member.wait_ready(PATIENCE)
        async with AsyncClient(front.address, timeout=PATIENCE) as client:
            vectors = np.asarray(await client.embed(TEXTS))
            found = {"Embed": vectors}
            for method in ("dense", "late_interaction"):
                ranked = await client.rerank(QUERY, TEXTS, method=method)
                found[f"Rerank, {method}"] = np.array(
                    [each.score for each in sorted(ranked, key=lambda each: each.index)]
                )
            return await client.model(), found
    finally:
        for member in reversed(members):
            await member.stop()


async def compare() -> None:
    expected_card, expected = await answers(sys.executable)
    say(f"this processor answered: {expected_card.linear}")
    card, found = await answers(str(PYTHON))
    say(f"ARM answered: {card.linear}")
    if not card.bitwise_invariant:
        raise SystemExit("failed: on ARM the kernels do not run the model")
    for name, numbers in expected.items():
        difference = float(np.abs(numbers - found[name]).max())
        say(f"{name}: {numbers.shape}, largest difference {difference:.1e} of {TOLERANCE:.0e}")
        if difference > TOLERANCE:
            raise SystemExit(f"failed: {name} differs by {difference}")


def main() -> None:
    missing = [f"{program} (Debian: {package})" for program, package in PROGRAMS.items() if not shutil.which(program)]
    if missing:
        raise SystemExit(f"failed: there is no {', no '.join(missing)}")
    ARM.mkdir(exist_ok=True)
    make_system()
    make_packages()
    make_python()
    run(PYTHON, "-m", "gpu_worker.kernels.cpu.build", CXX="aarch64-linux-gnu-g++")
    run(PYTHON, "-m", "gpu_worker", "--check", "--model", "minilm", "--device", "cpu")
    asyncio.run(compare())
    if ARM_TESTS:
        options = ["-q", "-p", "no:cacheprovider", "--timeout=3600", "-k", "not lesser"]
        run(PYTHON, "-m", "pytest", *options, *ARM_TESTS.split(), OMP_NUM_THREADS="1")
    say("every promise held")


if __name__ == "__main__":
    main()
