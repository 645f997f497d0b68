"""The worker computes vectors and scores from token ids, one process for each accelerator. It never sees a text.

Importing it sets defaults for environment variables that libraries read when torch is loaded. Variables that a user set
stay, and libraries that are loaded already do not read them.
"""

import os

DEFAULTS = {
    # By default libgomp's threads spin for milliseconds after a step, on cores that the event loop and a frontend could
    # use. Where two threads of a step share a core, each parallel region takes as long as they spin. Some 20
    # microseconds bridge the gaps inside a layer.
    "GOMP_SPINCOUNT": "1000",
    # oneDNN keeps a compiled product for each number of tokens that a step had, by default a thousand of them, half a
    # mebibyte each, and PyTorch as many again. With these limits a step that finds none of its products is a few
    # milliseconds slower.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "LRU_CACHE_CAPACITY": "64",
    # PyTorch asks for huge pages for tensors of 2 MiB and more; see `device/memory.py`.
    "THP_MEM_ALLOC_ENABLE": "1",
}
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Names of PyTorch's allocator settings. It also reads the older ones, but prefers the first."""


def _set_defaults() -> None:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    # Steps differ in size, and a block of CUDA memory that one step has freed rarely suits another: segments that grow
    # leave no gaps.
    if not any(name in os.environ for name in ALLOCATOR):
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"


_set_defaults()
