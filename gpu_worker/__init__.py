"""The worker computes vectors and scores from token ids, one process for each accelerator. It never sees a text."""

from gpu_worker.environment import set_defaults

set_defaults()
