"""Exports a model for ONNX Runtime and OpenVINO: its encoder, pooling and normalisation as one graph.

Reads BERT's or Qwen3's weights in sentence-transformers' form, in the Python of ONNX Runtime. Arguments: the model's
folder, and one for the files: `model.onnx` as exported; `float32.onnx`, in which ONNX Runtime's optimiser has joined
attention, normalisation and GELU to one operator each; `int8.onnx`, dynamically quantised: weights in signed bytes by
channel, activations in unsigned bytes by tensor. The optimised graph in int8 was no faster and further from float32.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers import optimizer

from benchmarks.peers.embedder import Embedder

NAMES = ["input_ids", "attention_mask"]


def export(model: Path, folder: Path) -> None:
    """Writes the three graphs."""
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
