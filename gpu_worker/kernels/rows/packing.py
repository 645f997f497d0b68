"""Packing of rows into bytes and back, in every data type of the contract. Tensors without I/O."""

import numpy as np
import torch
from torch import Tensor

from shared.vectors import DataType, MultiVectors

TORCH_TYPES = {
    DataType.FLOAT32: torch.float32,
    DataType.FLOAT16: torch.float16,
    DataType.BFLOAT16: torch.bfloat16,
}


def pack(rows: Tensor, data_type: DataType) -> tuple[Tensor, Tensor | None]:
    """Packs float32 rows [N, D] into bytes [N, B] uint8, and scales [N] float32 for INT8.

    INT8 is symmetric per row: value = int8 x scale, scale = largest magnitude / 127. BINARY packs eight dimensions
    into a byte, most significant bit first, 1 where >= 0, padded with zeros.
    """
    if data_type is DataType.INT8:
        scales = rows.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        return (rows / scales[:, None]).round().clamp(-127, 127).to(torch.int8).view(torch.uint8), scales
    if data_type is DataType.BINARY:
        bits = torch.nn.functional.pad((rows >= 0).to(torch.uint8), (0, -rows.shape[1] % 8))
        weights = 2 ** torch.arange(7, -1, -1, dtype=torch.uint8, device=rows.device)
        return (bits.view(len(bits), bits.shape[1] // 8, 8) * weights).sum(dim=2, dtype=torch.uint8), None
    return rows.to(TORCH_TYPES[data_type]).contiguous().view(torch.uint8), None


def unpack(vectors: MultiVectors, keep_half: bool = False) -> Tensor:
    """Unpacks vectors into rows [N, D] on the CPU: float32, but FLOAT16 and BFLOAT16 stay so with `keep_half`.

    BINARY reads as +1 and -1.
    """
    dtype = TORCH_TYPES.get(vectors.data_type, torch.float32) if keep_half else torch.float32
    if not vectors.rows:
        return torch.zeros(0, vectors.dimensions, dtype=dtype)
    data = torch.frombuffer(bytearray(vectors.data), dtype=torch.uint8)
    if vectors.data_type is DataType.INT8:
        scales = torch.frombuffer(bytearray(vectors.scales), dtype=torch.float32)
        return data.view(torch.int8).view(vectors.rows, -1).float() * scales[:, None]
    if vectors.data_type is DataType.BINARY:
        bits = np.unpackbits(data.view(vectors.rows, -1).numpy(), axis=1, count=vectors.dimensions)
        return torch.from_numpy(bits).float().mul_(2).sub_(1)
    return data.view(TORCH_TYPES[vectors.data_type]).view(vectors.rows, -1).to(dtype)
