"""The client's methods over both services in this process."""

import math
import weakref
from pathlib import Path
from typing import Unpack

from embedded.channel import local_channel
from embedded.options import EngineOptions
from selvage.blocking import Blocking
from selvage.connection import Settings


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
        settings = Settings.of(
            "this process",
            model="",
            key="",
            tls=False,
            timeout=timeout,
            retries=5,
            in_flight=in_flight,
            fairness_key="",
            priority="",
            metadata=(),
        )
        channel = local_channel(str(model), options)
        super().__init__(settings, channel)
        weakref.finalize(self, channel.stop)
        self._name = str(model)

    def __repr__(self) -> str:
        return f"Engine({self._name!r}, timeout={self.settings.timeout:g})"
