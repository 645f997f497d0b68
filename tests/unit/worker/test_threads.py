"""What the worker tells libgomp, oneDNN, PyTorch and its allocator before they are loaded."""

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
            print(*(os.environ.get(name) for name in {names!r}), sep="\\n")
            raise SystemExit
sys.meta_path.insert(0, Watch())
import gpu_worker.__main__
"""


DEFAULTS = {"GOMP_SPINCOUNT": "1000", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256", "LRU_CACHE_CAPACITY": "64"}
DEFAULTS |= {"THP_MEM_ALLOC_ENABLE": "1"}
DEFAULTS |= {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "None"}
OTHERS = {"GOMP_SPINCOUNT": "300000", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "7", "LRU_CACHE_CAPACITY": "8"}
OTHERS |= {"THP_MEM_ALLOC_ENABLE": "0"}
OTHERS |= {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_CUDA_ALLOC_CONF": ""}
OLD = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}
"""PyTorch reads either name, and would heed ours first."""


@pytest.mark.parametrize(
    ("given", "expected"), [({}, DEFAULTS), (OTHERS, OTHERS), (OLD, DEFAULTS | OLD | {"PYTORCH_ALLOC_CONF": "None"})]
)
def test_libraries_are_told_in_time(given: dict[str, str], expected: dict[str, str]) -> None:
    """They read it once, when torch is loaded; whoever starts the worker may know better."""
    environment = {name: value for name, value in os.environ.items() if name not in DEFAULTS}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}"} | given
    program = PROGRAM.format(names=list(DEFAULTS))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert ended.stdout.split("\n")[:-1] == [expected[name] for name in DEFAULTS]
