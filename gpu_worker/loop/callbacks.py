"""What the loop tells while it runs, and callbacks that ignore it. No torch, asyncio or gRPC."""

from collections.abc import Callable

ObserveStep = Callable[[float, int, int], None]
"""A callback for every step that ended: its seconds, tokens and units."""


def unobserved(seconds: float, tokens: int, units: int) -> None:
    """Ignores the steps that ended."""
