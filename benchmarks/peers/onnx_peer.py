"""MiniLM under ONNX Runtime: exported once, its graph optimised with fused attention, in float32.

In a Python of its own; arguments: the model's folder, threads, and a folder for the exported files.
"""

import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from onnxruntime.transformers import optimizer
from torch import nn
from transformers import AutoModel

from benchmarks.peers.answering import answer, padded, texts

Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
NAMES = ["input_ids", "attention_mask", "token_type_ids"]


class _Encoder(nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> Any:
        return self.model(input_ids, attention_mask, token_type_ids).last_hidden_state


def export(path: str, optimised: Path) -> None:
    """Exports the model of `path` to a file in which attention, normalisation and GELU are one operator each."""
    exported = optimised.with_name("model.onnx")
    ids = torch.ones(2, 8, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {name: {0: "batch", 1: "length"} for name in [*NAMES, "hidden"]}
        shape: dict[str, Any] = {"input_names": NAMES, "output_names": ["hidden"], "dynamic_axes": axes}
        torch.onnx.export(_Encoder(path), (ids, ids, ids * 0), str(exported), dynamo=False, opset_version=17, **shape)
    graph = optimizer.optimize_model(str(exported), model_type="bert", num_heads=12, hidden_size=384, opt_level=1)
    graph.save_model_to_file(str(optimised))


def embed(session: Any, all_texts: list[Ids], batch_size: int) -> Rows:
    """Embeds texts in batches sorted by length: unit rows [S, 384] in the order of the texts."""
    rows = np.empty((len(all_texts), 384), dtype=np.float32)
    for chosen, ids, mask in padded(all_texts, batch_size):
        hidden = session.run(None, dict(zip(NAMES, (ids, mask, np.zeros_like(ids)), strict=True)))[0]
        pooled = (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        rows[chosen] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    return rows


if __name__ == "__main__":
    model, options = Path(sys.argv[3]) / "optimised.onnx", onnxruntime.SessionOptions()
    if not model.exists():
        export(sys.argv[1], model)
    options.intra_op_num_threads = int(sys.argv[2])
    loaded = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    answer({"embed": lambda file, batch_size: partial(embed, loaded, texts(file), batch_size)})
