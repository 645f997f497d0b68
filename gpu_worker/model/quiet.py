"""Silences libraries while a model is loaded: their reports and advice would hide the worker's own lines."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.utils.tqdm import enable_progress_bars
from transformers.utils import logging as transformers_logging


@contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers' log, its progress bars and Python's warnings; errors are still raised."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            transformers_logging.set_verbosity(logging.CRITICAL)
            transformers_logging.disable_progress_bar()
            if bars:
                enable_progress_bars()  # those of downloads from the hub, which take minutes
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
