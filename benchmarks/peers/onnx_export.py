"""Exports a model for ONNX Runtime and OpenVINO: its encoder, pooling and normalisation as one graph.

Reads BERT's or Qwen3's weights in sentence-transformers' form, in the Python of ONNX Runtime. Arguments: the model's
folder, and one for the files: `model.onnx` as exported; `float32.onnx`, in which ONNX Runtime's optimiser has joined
attention, normalisation and GELU to one operator each; `int8.onnx`, dynamically quantised: weights in signed bytes by
channel, activations in unsigned bytes by tensor. The optimised graph in int8 was no faster and further from float32.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel

NAMES = ["input_ids", "attention_mask"]


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
    later = torch.ones(mask.shape[1], mask.shape[1]).triu(1).bool()
    return torch.zeros(later.shape).masked_fill(later, torch.finfo(torch.float32).min)[None, None]


def export(model: Path, folder: Path) -> None:
    """Writes the three graphs."""
    from onnxruntime.quantization import QuantType, quantize_dynamic  # in a Python of its own
    from onnxruntime.transformers import optimizer

    folder.mkdir(parents=True, exist_ok=True)
    embedder, ids = Embedder(model), torch.ones(2, 8, dtype=torch.int64)
    plain, config = str(folder / "model.onnx"), embedder.model.config
    axes: dict[str, Any] = {**{name: {0: "batch", 1: "length"} for name in NAMES}, "rows": {0: "batch"}}
    shape: dict[str, Any] = {"input_names": NAMES, "output_names": ["rows"], "dynamic_axes": axes}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        torch.onnx.export(embedder, (ids, ids), plain, dynamo=False, opset_version=17, **shape)
    sizes = {"num_heads": config.num_attention_heads, "hidden_size": config.hidden_size}
    level = 0 if embedder.causal else 1
    graph = optimizer.optimize_model(plain, model_type=config.model_type, opt_level=level, **sizes)
    graph.save_model_to_file(str(folder / "float32.onnx"))
    quantize_dynamic(plain, folder / "int8.onnx", weight_type=QuantType.QInt8, per_channel=True)


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
