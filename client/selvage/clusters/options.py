"""What is asked, by names as `Client.embed`, `Client` and `Engine` have them -> a template and services."""

from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from selvage.bulk.service import ChannelService
from selvage.connection import Settings
from selvage.in_process import embedded

VECTORS: dict[str, Any] = {
    **dict.fromkeys(("input_type", "prompt", "prompt_name", "dimensions", "normalize"), None),
    "data_type": "float32",
    "truncate": False,
    **dict.fromkeys(("truncation_side", "max_tokens", "sparse_top_k", "pool_factor", "protected_tokens"), None),
}
"""Options of `Client.embed`, whoever answers."""
CONNECTION: dict[str, Any] = {"key": "", "tls": False, "fairness_key": "", "priority": "bulk", "metadata": ()}
"""Options of `Client`, where there are targets."""


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of the vectors, all of them, and the others as they were given."""
    vectors = {name: options.get(name, default) for name, default in VECTORS.items()}
    return vectors, {name: value for name, value in options.items() if name not in VECTORS}


def services(model: str, target: str | Sequence[str], others: Mapping[str, Any]) -> list[ChannelService]:
    """One a target; without any, the model runs in this process. The same target twice means two streams.

    Raises TypeError for an unknown option; ValueError where the model is refused, or a value makes no sense.
    """
    names = [target] if isinstance(target, str) and target else list(target)
    if not names:
        if not model:
            raise ValueError("either `model` runs in this process, or `target` names services")
        channel = embedded("channel").local_channel(model, others)
        return [ChannelService(_settings(model, "", CONNECTION), channel)]
    for name in others:
        if name not in CONNECTION:
            raise TypeError(f"there is no option {name!r} beside targets; there are {', '.join(VECTORS | CONNECTION)}")
    connected = [_settings(each, model, CONNECTION | dict(others)) for each in names]
    return [ChannelService(each, each.channel(grpc)) for each in connected]


def _settings(target: str, model: str, connection: Mapping[str, Any]) -> Settings:
    """Streams have no deadline, and the board decides on retries."""
    return Settings.of(target, model=model, timeout=60.0, retries=0, in_flight=1, **connection)
