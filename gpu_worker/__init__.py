"""The worker: token ids in, vectors and scores out. One process an accelerator; it never sees a text."""

from gpu_worker.environment import set_defaults

set_defaults()
