"""How OpenMP's threads wait in the worker's process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"))
            raise SystemExit
sys.meta_path.insert(0, Watch())
import gpu_worker.__main__
"""


@pytest.mark.parametrize(("given", "expected"), [({}, "10000"), ({"GOMP_SPINCOUNT": "300000"}, "300000")])
def test_threads_spin_briefly_unless_told_otherwise(given: dict[str, str], expected: str) -> None:
    """libgomp reads it once, when torch is loaded; whoever starts the worker may know better."""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'protos'}"} | given
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    assert ended.stdout.strip() == expected
