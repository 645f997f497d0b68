"""Linear layers that are rounded on purpose, by the value of `--linear`."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from torch import nn

from gpu_worker.device.placement import Placement
from gpu_worker.model.tune import fp8, int8


class RoundedLayers(Protocol):
    """A module of rounded layers. `NAME` stands in the card, `ROUNDING` counts for the fingerprint."""

    NAME: str
    ROUNDING: str

    def check_device(self, placement: Placement) -> None:
        """Raises ModelRefused where a placement cannot run these layers."""

    def install(self, base: nn.Module, heads: Iterable[nn.Module] = ()) -> str:
        """Replaces the layers of an encoder in place, but for those that `heads` share; returns a line for the log.

        Raises ModelRefused where no layer can be replaced.
        """


ROUNDED: Mapping[str, RoundedLayers] = {"fp8": fp8, "int8": int8}
"""The modules by the value of the setting."""
