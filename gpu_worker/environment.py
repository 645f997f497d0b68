"""What libraries read from the environment when torch is loaded; `gpu_worker/__init__` asks for it before that.

What a user has set stays.
"""

import os

DEFAULTS = {
    # libgomp lets threads spin for milliseconds after a step: cores that the event loop and frontends beside could have
    # had. Some tenths of a millisecond bridge the gaps inside a step.
    "GOMP_SPINCOUNT": "10000",
    # oneDNN keeps a product compiled for each number of tokens that a step had, half a mebibyte each, a thousand of
    # them. PyTorch keeps as many again. With these many a step in which no number comes back is a few milliseconds
    # slower.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "LRU_CACHE_CAPACITY": "64",
}
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""PyTorch reads the older names as well, and would heed the first one before them."""


def set_defaults() -> None:
    """Does nothing for libraries that are loaded already."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    # Steps differ in size, and a block of CUDA's memory that one of them has left rarely suits another: segments that
    # grow leave no gaps between.
    if not any(name in os.environ for name in ALLOCATOR):
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"
