"""The client's methods over both services in this process."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from embedded.options import EngineOptions, settings_of
from embedded.services import running_services
from gpu_worker.schedule.driver import DeviceLost
from selvage.background import Session
from selvage.client import Blocking
from selvage.connection import Settings
from shared.errors import ModelRefused

OWNER = "engine"
"""What errors call an engine that was closed, or that a fork has left behind."""


class Engine(Blocking):
    """A model in this process: texts in, arrays out, without a port.

        with Engine("minilm") as engine:
            vectors = engine.embed(texts)             # ndarray (texts, dimensions), float32

    It has the methods of `Client`, and does with each call what the services do: the same checks, the same numbers, the
    same errors. While some texts are computed the next ones are tokenised and packed. Threads may share it; close it
    before the main thread ends. A process that forks makes its engines after the fork.
    """

    def __init__(
        self,
        model: str | Path = "minilm",
        *,
        timeout: float = math.inf,
        in_flight: int = 4,
        **options: Unpack[EngineOptions],
    ) -> None:
        """Returns when the model is loaded, compared with its own attention, and warm.

        `model`: a directory, a hub id, or minilm. `timeout`: seconds for a call that does not say how long
        it may take. `in_flight`: parts of a large input that are prepared at a time. `options`: those of
        `python -m gpu_worker --help` with underscores, such as device="cuda:1", dtype="float16", max_tokens=512.

        Raises ValueError where the model is refused, in one line, or a value makes no sense; TypeError for an unknown
        option; RuntimeError where the device fails.
        """
        settings = Settings(target="unix:", timeout=timeout, in_flight=in_flight)  # checked before a model is loaded
        session, address = start(str(model), options)
        super().__init__(replace(settings, target=address), session, OWNER)
        self._name = str(model)

    def __repr__(self) -> str:
        return f"Engine({self._name!r}, timeout={self.settings.timeout:g})"


def start(model: str, options: EngineOptions) -> tuple[Session, str]:
    """Loads a model; the session in which its services run, which end with it, and their address.

    Raises as `Engine` does.
    """
    settings, session = settings_of(model, options), Session(OWNER)
    try:
        return session, session.enter(running_services(settings))
    except BaseException as error:  # Ctrl-C too: what is loaded then goes again
        session.stop()
        if isinstance(error, ModelRefused):
            raise ValueError(f"model = {model!r}: {error}") from error
        if isinstance(error, DeviceLost):
            raise RuntimeError(f"the device is lost: {error}") from error
        raise
