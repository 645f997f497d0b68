"""The device and dtype in which the model computes: the one place that chooses them."""

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import torch

from gpu_worker.device.memory import DeviceMemory, reclaim
from shared.errors import ModelRefused

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
"""Values of `--dtype`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A device and a dtype. `automatic`: the settings name no dtype, so the model's files may."""

    device: torch.device
    dtype: torch.dtype
    automatic: bool = False

    @classmethod
    def choose(cls, device: str = "auto", dtype: Dtype = "auto") -> "Placement":
        """Chooses for "auto": the first CUDA device with bfloat16, or, where there is none, the CPU with float32.

        Raises ModelRefused for a device that this machine or this PyTorch does not have.
        """
        if device == "auto":
            device = "cuda:0" if torch.cuda.is_available() else "cpu"
        try:
            place = torch.empty(1, device=device).device  # for "cuda" this adds the number
        except (RuntimeError, AssertionError) as error:
            raise ModelRefused(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from None
        usual = "float32" if place.type == "cpu" else "bfloat16"
        name = usual if dtype == "auto" else dtype
        return cls(device=place, dtype=getattr(torch, name), automatic=dtype == "auto")

    def for_files_in(self, number_format: str) -> "Placement":
        """Changes an automatic placement on CUDA to float16 for a model that was saved in float16.

        In bfloat16 each of its weights would lose three bits. A model that was saved in float32 may run in bfloat16.
        """
        if self.automatic and self.device.type == "cuda" and number_format == "float16":
            return replace(self, dtype=torch.float16)
        return self

    def enter(self) -> None:
        """Makes this the current device of the calling thread, for events, streams and kernels that name none."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def reclaim(self) -> None:
        """Gives back memory that is kept of freed tensors; does nothing on a CPU."""
        if self.device.type == "cuda":
            reclaim()

    @property
    def dtype_name(self) -> str:
        """float32, bfloat16 or float16."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def device_memory(self) -> DeviceMemory | None:
        """The memory of the device, to measure what a step takes; None on a CPU, where this is not measured."""
        return DeviceMemory(self.device) if self.device.type == "cuda" else None

    @property
    def memory(self) -> dict[str, int]:
        """Memory of a CUDA device in bytes: `used` by tensors, `reserved` by PyTorch's allocator; `limit`: its size.

        Empty for other devices. The driver is not asked: it does not answer while a device hangs.
        """
        if self.device.type != "cuda":
            return {}
        used, reserved = torch.cuda.memory_allocated(self.device), torch.cuda.memory_reserved(self.device)
        return {"used": used, "reserved": reserved, "limit": torch.cuda.get_device_properties(self.device).total_memory}

    @property
    def step_tokens(self) -> int:
        """Usual tokens of a step: few saturate a CPU, where more serve if that pays; an accelerator needs many."""
        return 2048 if self.device.type == "cpu" else 16384

    @property
    def step_seconds(self) -> float:
        """Default for the longest time of a step, `inf` for none: a large model's full steps take seconds on a CPU."""
        return 0.2 if self.device.type == "cpu" else inf
