"""A model with its pooling as one module, for export: BERT's or Qwen3's weights in sentence-transformers' form.

torch and transformers only.
"""

import json
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModel


class Embedder(nn.Module):
    """Gives unit rows [B, D] from ids and mask [B, L] int64, texts first and padding behind."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        self.pooling: dict[str, bool] = json.loads((folder / "1_Pooling" / "config.json").read_text())
        self.causal = self.model.config.model_type == "qwen3"

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Runs the encoder and pools its states as the folder says."""
        attended = causal_mask(attention_mask) if self.causal else attention_mask
        hidden = self.model(input_ids=input_ids, attention_mask=attended, use_cache=False).last_hidden_state
        return nn.functional.normalize(self.pooled(hidden, attention_mask), dim=-1)

    def pooled(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Pools states [B, L, H] to rows [B, H]: the first token, the last one before the padding, or the mean."""
        if self.pooling.get("pooling_mode_cls_token"):
            return hidden[:, 0]
        if self.pooling.get("pooling_mode_lasttoken"):
            last = (mask.sum(dim=1) - 1)[:, None, None].expand(-1, -1, hidden.shape[2])
            return hidden.gather(1, last)[:, 0]
        weights = mask[:, :, None].to(hidden.dtype)
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


def causal_mask(mask: Tensor) -> Tensor:
    """Makes what is added to scores [1, 1, L, L]: no token sees a later one, so padding behind a text is never seen."""
    length = mask.shape[1]
    positions = torch.arange(length)
    later = positions[None, :] > positions[:, None]
    return torch.zeros(length, length).masked_fill(later, torch.finfo(torch.float32).min)[None, None]
