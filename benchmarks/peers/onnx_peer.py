"""MiniLM under ONNX Runtime: exported once, graph-optimised with fused attention, in float32 and in int8.

In a Python of its own; arguments: the model's folder, the number of threads, and a folder that keeps what is
exported.
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
from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers import optimizer
from torch import nn
from transformers import AutoModel

from benchmarks.laps import Laps
from benchmarks.mixes import Texts, read
from benchmarks.peers.answering import answer

Rows = npt.NDArray[np.float32]
OPTIMISED, INT8 = "optimised.onnx", "int8.onnx"
NAMES = ["input_ids", "attention_mask", "token_type_ids"]


class _Trunk(nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> Any:
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state


def export(path: str, folder: Path) -> Path:
    """The model of `path` as a file in `folder` whose attention, normalisation and GELU are one operator each."""
    exported, optimised = folder / "model.onnx", folder / OPTIMISED
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
    graph.save_model_to_file(str(optimised))
    return optimised


def quantised(model: Path) -> Path:
    """Its products with weights in int8, scaled by column, and activations scaled anew in every call."""
    path = model.with_name(INT8)
    types = {"DefaultTensorType": TensorProto.FLOAT}  # of what fused operators give, which inference does not know
    quantize_dynamic(str(model), str(path), weight_type=QuantType.QInt8, per_channel=True, extra_options=types)
    return path


class OnnxPeer:
    """An exported file as it is meant to be run."""

    def __init__(self, model: Path, threads: int, laps: Laps) -> None:
        self._laps = laps
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
            self._laps.lap()
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
    threads, kept, laps = int(sys.argv[2]), Path(sys.argv[3]), Laps()
    if not (kept / INT8).exists():
        quantised(export(sys.argv[1], kept))
    peers = {name: OnnxPeer(kept / file, threads, laps) for name, file in (("float32", OPTIMISED), ("int8", INT8))}
    answer(
        {
            name: lambda texts, batch_size, peer=peer: partial(peer.embed, read(texts), batch_size)
            for name, peer in peers.items()
        },
        laps,
    )
