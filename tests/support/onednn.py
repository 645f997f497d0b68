"""What oneDNN can do here; a PyTorch may be built without it, as Apple's is."""

import pytest
import torch
from torch import nn

from gpu_worker.model.tune.linear import pack

PACKED = pack(nn.Sequential(nn.Linear(8, 8)))
"""It multiplies by weights that are packed."""
HALF = PACKED and torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""In bfloat16 too."""
needs_packed_layers = pytest.mark.skipif(not PACKED, reason="this PyTorch packs no linear layers")
