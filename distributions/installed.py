"""Checks the environment that it runs in: all distributions of one version, nothing of a checkout, and all kernels.

`make dist` runs it with the Python of an environment that has only the built wheels and what they require.
"""

import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("selvage", "tei.v1.tei_pb2", "shared", "frontend_service", "embedded", "gpu_worker", "harness", "demo")
DISTRIBUTIONS = ("client", "shared", "frontend", "worker", "demo")


def faults() -> list[str]:
    """Finds what is wrong with the environment, one line each."""
    import shared
    from gpu_worker.kernels.cpu.library import INSTRUCTION_SETS, load, path_of, supported

    wrong = []
    for name in PACKAGES:
        place = import_module(name).__file__ or ""
        if not Path(place).is_relative_to(sys.prefix):
            wrong.append(f"{name} comes from {place}, not from this environment")
    installed = {name: version(f"selvage-serving-{name}") for name in DISTRIBUTIONS}
    if set(installed.values()) != {shared.__version__}:
        wrong.append(f"versions differ: {installed}, and {shared.__version__} in the code")
    missing = [kind for kind in INSTRUCTION_SETS if not path_of(kind).exists()]
    wrong += [f"there are no kernels for {kind.name}: {path_of(kind).name}" for kind in missing]
    if supported() and load().missing:
        wrong.append(f"this processor's kernels are not used: {load().missing}")
    return wrong


if __name__ == "__main__":
    lines = faults()
    print(*lines, sep="\n", end="\n" if lines else "", file=sys.stderr)
    raise SystemExit(bool(lines))
