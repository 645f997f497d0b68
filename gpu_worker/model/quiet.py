"""What libraries say while a model is loaded: reports and advice before the one line that counts."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.utils.tqdm import enable_progress_bars
from transformers.utils import logging as transformers_logging


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers and Python's warnings silent; what is wrong is raised, and told by whoever loads."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            transformers_logging.set_verbosity(logging.CRITICAL)
            transformers_logging.disable_progress_bar()
            if bars:
                enable_progress_bars()  # the hub's: a download takes minutes
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
