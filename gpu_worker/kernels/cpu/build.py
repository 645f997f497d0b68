"""`python -m gpu_worker.kernels.cpu.build`: builds the kernels for processors, with g++ or what CXX names.

Exits with 0 when they are built, 1 where that failed. The services run without them, only slower.
"""

from shared.command import CommandParser, begin

if __name__ == "__main__":
    begin("worker")

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch.utils import cpp_extension

from gpu_worker.kernels.cpu.library import BUILT, INSTRUCTION_SETS, InstructionSet, path_of, source_files, supported

FLAGS = ("-O3", "-std=c++20", "-shared", "-fPIC", "-Wall", "-Wno-maybe-uninitialized")
"""The compiler's own headers of AVX-512 read what they have not set, on purpose."""


class BuildError(Exception):
    """The kernels cannot be built; the message says why."""


def build(instructions: InstructionSet, compiler: str, more_flags: Sequence[str] = ()) -> Path:
    """Builds the library for a set of instructions, unless it is there. Raises BuildError.

    The library is written aside and then renamed: a process that loads it meanwhile finds all of it or nothing.
    """
    path = path_of(instructions)
    if path.exists() and not more_flags:
        return path
    BUILT.mkdir(exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    sources = [str(source) for source in source_files() if source.suffix == ".cpp"]
    headers = [flag for folder in cpp_extension.include_paths() for flag in ("-isystem", folder)]
    # OpenMP's functions are found where PyTorch has its own: a second copy would bring a second set of threads.
    libraries = [*(f"-L{folder}" for folder in cpp_extension.library_paths()), "-ltorch_cpu", "-lc10"]
    flags = [*FLAGS, *instructions.flags, *more_flags, "-fopenmp"]
    command = [compiler, *flags, *headers, *sources, "-o", str(draft), *libraries]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise BuildError(f"{compiler} failed:\n{result.stderr.strip()}")
        draft.replace(path)
        for other in BUILT.glob(f"{instructions.name}-*-torch{torch.__version__}.so"):  # of earlier sources
            if other != path:
                other.unlink(missing_ok=True)
    except OSError as error:
        raise BuildError(f"{error.filename or BUILT}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return path


def compiler() -> str:
    """Finds the C++ compiler: CXX, or g++. Raises BuildError where there is none."""
    named = os.environ.get("CXX", "g++")
    path = shutil.which(named)
    if path is None:
        raise BuildError(f"there is no compiler {named}; Debian's package g++ has one, and CXX names another")
    return path


def main(arguments: Sequence[str]) -> int:
    """Runs the command, and returns its exit status."""
    parser = CommandParser(
        prog="python -m gpu_worker.kernels.cpu.build",
        description="Builds the worker's kernels for processors, for the PyTorch that is installed. The worker runs "
        "without them too, at down to half the speed and without int8, and says so in its log.",
    )
    every = "for every kind of processor, as an image wants; default: for this one"
    parser.add_argument("--all", action="store_true", help=every)
    options = parser.parse_args(arguments)
    sets = INSTRUCTION_SETS if options.all else supported()[:1]
    if not sets and options.all:
        return 0  # an image for such a processor is built without kernels
    if not sets:
        print(f"there are no kernels for this processor ({torch.backends.cpu.get_cpu_capability()})", file=sys.stderr)
        return 1
    start = time.perf_counter()
    try:
        with ThreadPoolExecutor(os.cpu_count()) as together:
            for path in together.map(partial(build, compiler=compiler()), sets):
                size, seconds = path.stat().st_size >> 10, time.perf_counter() - start
                print(f"{path.name}: {size:,} KiB, after {seconds:.1f} s", flush=True)
    except BuildError as error:
        print(f"the kernels cannot be built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
