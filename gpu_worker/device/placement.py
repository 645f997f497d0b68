"""Where and in which number format the model computes: settled here and nowhere else."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from gpu_worker.device.memory import DeviceMemory, reclaim
from shared.errors import ModelRefused

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A device and a dtype. `automatic`: nobody has named the dtype, so the model's files may."""

    device: torch.device
    dtype: torch.dtype
    automatic: bool = False

    @classmethod
    def choose(cls, device: str = "auto", dtype: Dtype = "auto") -> "Placement":
        """auto: the first CUDA device where there is one, else the CPU; bfloat16 there, float32 here.

        Raises ModelRefused for a device that this machine or this PyTorch does not have.
        """
        if device == "auto":
            device = "cuda:0" if torch.cuda.is_available() else "cpu"
        try:
            place = torch.empty(1, device=device).device  # cuda comes with its number
        except (RuntimeError, AssertionError) as error:
            raise ModelRefused(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from None
        name = dtype if dtype != "auto" else "float32" if place.type == "cpu" else "bfloat16"
        return cls(device=place, dtype=getattr(torch, name), automatic=dtype == "auto")

    def for_files_in(self, number_format: str) -> "Placement":
        """The same for a model whose files name a number format: in float16 on CUDA, where nobody has named another.

        In bfloat16 such a model would lose three bits of each weight. What is saved in float32 may be run in bfloat16.
        """
        if self.automatic and self.device.type == "cuda" and number_format == "float16":
            return replace(self, dtype=torch.float16)
        return self

    def enter(self) -> None:
        """Makes the device the calling thread's own, where what names none goes: events, streams, kernels."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def reclaim(self) -> None:
        """Gives back what is kept of tensors that are gone; nothing on a processor."""
        if self.device.type == "cuda":
            reclaim()

    @property
    def dtype_name(self) -> str:
        """float32, bfloat16 or float16."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def measured(self) -> DeviceMemory | None:
        """What tells how much memory a step takes; None on a processor, where nothing is rehearsed."""
        return DeviceMemory(self.device) if self.device.type == "cuda" else None

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of a CUDA device: of tensors, kept by PyTorch's allocator, of the device; empty on others.

        The driver is not asked: where a device hangs it does not answer.
        """
        if self.device.type != "cuda":
            return {}
        used, reserved = torch.cuda.memory_allocated(self.device), torch.cuda.memory_reserved(self.device)
        return {"used": used, "reserved": reserved, "limit": torch.cuda.get_device_properties(self.device).total_memory}

    @property
    def step_tokens(self) -> int:
        """Tokens of a step that suit the device: a CPU is saturated early, an accelerator late."""
        return 2048 if self.device.type == "cpu" else 16384

    @property
    def step_seconds(self) -> float:
        """How long a step should take at most, 0 for no bound: full steps of a large model take seconds on a CPU."""
        return 0.2 if self.device.type == "cpu" else 0.0
