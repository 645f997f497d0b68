"""A model in this process as a service. It is loaded when its card is first used, after the inputs were checked."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from selvage import embedded  # type: ignore[attr-defined]  # not of the public names
from selvage.bulk.failures import Failed
from selvage.bulk.service import CARD_SECONDS, ChannelService
from selvage.connection import Settings
from selvage.model_card import ModelCard
from selvage.v1.embedding_pb2 import EmbedStreamRequest, EmbedStreamResponse


class EngineService:
    """A `BulkService` whose methods raise Failed where the model cannot be loaded."""

    def __init__(self, settings: Settings, model: str, options: Any) -> None:
        """`options`: see `embedded.options`."""
        self.name, self._settings, self._options = model, settings, options

    def card(self, seconds: float = CARD_SECONDS) -> ModelCard:
        return self._loaded.card(seconds)

    def replies(self, requests: Iterator[EmbedStreamRequest]) -> Iterator[EmbedStreamResponse]:
        return self._loaded.replies(requests)

    def close(self) -> None:
        if "_loaded" in vars(self):
            self._loaded.close()

    @cached_property
    def _loaded(self) -> ChannelService:
        try:
            return ChannelService(self._settings, embedded("channel").local_channel(self.name, self._options))
        except (ImportError, TypeError, ValueError, RuntimeError) as error:
            raise Failed(f"--engine: {error}") from error
