"""MiniLM under ONNX Runtime: exported once, graph-optimised with fused attention, two threads."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import AutoModel

Rows = npt.NDArray[np.float32]


class _Trunk(nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> Any:
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state


class OnnxPeer:
    """`embed` pads sorted batches, pools and normalises; `batch_size` is chosen by whoever measures."""

    def __init__(self, path: str, folder: Path, threads: int) -> None:
        import onnxruntime
        from onnxruntime.transformers import optimizer

        exported, optimised = folder / "model.onnx", folder / "optimised.onnx"
        names = ["input_ids", "attention_mask", "token_type_ids"]
        ids = torch.ones(2, 8, dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _Trunk(path),
                (ids, ids, ids * 0),
                str(exported),
                dynamo=False,
                input_names=names,
                output_names=["hidden"],
                dynamic_axes={name: {0: "batch", 1: "length"} for name in [*names, "hidden"]},
                opset_version=17,
            )
        graph = optimizer.optimize_model(str(exported), model_type="bert", num_heads=12, hidden_size=384, opt_level=1)
        graph.save_model_to_file(str(optimised))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(optimised), options, providers=["CPUExecutionProvider"])
        self.batch_size = 8

    def embed(self, texts: Sequence[npt.NDArray[np.int32]]) -> Rows:
        """Token ids -> normalised rows [N, 384] in the order given."""
        order = np.argsort([len(text) for text in texts], kind="stable")
        rows = np.empty((len(texts), 384), dtype=np.float32)
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            rows[chosen] = self._batch([texts[each] for each in chosen])
        return rows

    def _batch(self, texts: Sequence[npt.NDArray[np.int32]]) -> Rows:
        ids = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = self._session.run(None, feed)[0]
        pooled = (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        unit: Rows = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return unit
