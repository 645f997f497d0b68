"""Options by the names of `Client.embed`, `Client` and `Engine` -> options of the vectors, and services."""

from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from selvage import embedded  # type: ignore[attr-defined]  # not of the public names
from selvage.bulk.service import ChannelService
from selvage.connection import Settings

VECTORS: dict[str, Any] = {
    **dict.fromkeys(("input_type", "prompt", "prompt_name", "dimensions", "normalize"), None),
    "data_type": "float32",
    "truncate": False,
    **dict.fromkeys(("truncation_side", "max_tokens", "sparse_top_k", "pool_factor", "protected_tokens"), None),
}
"""Options of `Client.embed` and their defaults, with targets and without."""
CONNECTION: dict[str, Any] = {"key": "", "tls": False, "fairness_key": "", "priority": "bulk", "metadata": ()}
"""Options of `Client` and their defaults, where there are targets."""


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """All options of the vectors, with defaults, and the other options as they are."""
    vectors = {name: options.get(name, default) for name, default in VECTORS.items()}
    return vectors, {name: value for name, value in options.items() if name not in VECTORS}


def services(model: str, target: str | Sequence[str], other_options: Mapping[str, Any]) -> list[ChannelService]:
    """A service for each target; without any, the model in this process. A target that is named twice has two streams.

    Raises TypeError for an unknown option; ValueError where the model is refused, or a value makes no sense.
    """
    names = [target] if isinstance(target, str) and target else list(target)
    if not names:
        if not model:
            raise ValueError("either `model` runs in this process, or `target` names services")
        channel = embedded("channel").local_channel(model, other_options)
        return [ChannelService(_settings(model, "", CONNECTION), channel)]
    for name in other_options:
        if name not in CONNECTION:
            raise TypeError(f"there is no option {name!r} beside targets; there are {', '.join(VECTORS | CONNECTION)}")
    all_settings = [_settings(name, model, CONNECTION | dict(other_options)) for name in names]
    return [ChannelService(settings, settings.channel(grpc)) for settings in all_settings]


def _settings(target: str, model: str, connection: Mapping[str, Any]) -> Settings:
    """Settings of a target. Streams have no deadline, and the batch queue decides on retries."""
    return Settings.of(target, model=model, timeout=60.0, retries=0, in_flight=1, **connection)
