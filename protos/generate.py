"""Generates the Python stubs of all contracts into client/, or checks that they are fresh.

Standard library only: it runs before anything is installed and calls grpc_tools in a venv of its own.
"""

import argparse
import filecmp
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent
CLIENT = ROOT.parent / "client"


def generate(python: str, into: Path) -> list[Path]:
    """Writes all stubs below `into` and returns their paths relative to it."""
    sources = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.proto"))
    outputs = [f"--{kind}={into}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    subprocess.run([python, "-m", "grpc_tools.protoc", "-I.", *outputs, *sources], cwd=ROOT, check=True)
    return sorted(path.relative_to(into) for path in into.rglob("*_pb2*.py*") if path.suffix != ".pyc")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has grpc_tools")
    parser.add_argument("--check", action="store_true", help="compare with the committed stubs, write nothing")
    arguments = parser.parse_args()
    python = str(Path(arguments.python).absolute())
    if not arguments.check:
        generate(python, CLIENT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate(python, Path(folder))
        committed = sorted(path.relative_to(CLIENT) for path in CLIENT.rglob("*_pb2*.py*") if path.suffix != ".pyc")
        stale = sorted(set(fresh) ^ set(committed)) + [
            path
            for path in set(fresh) & set(committed)
            if not filecmp.cmp(Path(folder, path), CLIENT / path, shallow=False)
        ]
    for path in stale:
        print(f"client/{path} is not what its .proto generates; run `make protos`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
