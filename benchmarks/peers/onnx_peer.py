"""MiniLM under ONNX Runtime: exported once, its graph optimised with fused attention, in float32.

In a Python of its own; arguments: the model's folder, threads, and a folder that keeps what is exported.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from onnxruntime.transformers import optimizer
from torch import nn
from transformers import AutoModel

from benchmarks.peers.answering import answer, texts

Rows = npt.NDArray[np.float32]
Texts = list[npt.NDArray[np.int32]]
OPTIMISED = "optimised.onnx"
NAMES = ["input_ids", "attention_mask", "token_type_ids"]


class _Trunk(nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> Any:
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state


def export(path: str, folder: Path) -> None:
    """The model of `path` as a file in `folder` whose attention, normalisation and GELU are one operator each."""
    exported = folder / "model.onnx"
    ids = torch.ones(2, 8, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Trunk(path),
            (ids, ids, ids * 0),
            str(exported),
            dynamo=False,
            input_names=NAMES,
            output_names=["hidden"],
            dynamic_axes={name: {0: "batch", 1: "length"} for name in [*NAMES, "hidden"]},
            opset_version=17,
        )
    graph = optimizer.optimize_model(str(exported), model_type="bert", num_heads=12, hidden_size=384, opt_level=1)
    graph.save_model_to_file(str(folder / OPTIMISED))


class OnnxPeer:
    """An exported file as it is meant to be run."""

    def __init__(self, model: Path, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])

    def embed(self, texts: Texts, batch_size: int) -> Rows:
        """Normalised rows [N, 384] in the order given; batches are sorted by length."""
        order = np.argsort([len(text) for text in texts], kind="stable")
        rows = np.empty((len(texts), 384), dtype=np.float32)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            rows[chosen] = self._batch([texts[each] for each in chosen])
        return rows

    def _batch(self, texts: Texts) -> Rows:
        ids = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1
        hidden = self._session.run(None, dict(zip(NAMES, (ids, mask, np.zeros_like(ids)), strict=True)))[0]
        pooled = (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        unit: Rows = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return unit


if __name__ == "__main__":
    folder = Path(sys.argv[3])
    if not (folder / OPTIMISED).exists():
        export(sys.argv[1], folder)
    loaded = OnnxPeer(folder / OPTIMISED, int(sys.argv[2]))

    def make(file: str, batch_size: int) -> Callable[[], Rows]:
        all_texts = texts(file)
        return lambda: loaded.embed(all_texts, batch_size)

    answer({"embed": make})
