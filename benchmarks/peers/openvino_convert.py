"""Converts an exported model to OpenVINO's own files, which its processes share, and quantises it with NNCF.

In the Python of OpenVINO; argument: a folder of `onnx_export`. int8 is NNCF's static quantisation for transformers,
calibrated with texts like those that are measured.
"""

import sys
from pathlib import Path
from typing import Any

import nncf
import openvino

from benchmarks.peers.batches import padded
from benchmarks.workloads import lognormal, token_ids

CALIBRATION, SEED = 32, 2
"""Texts for calibration, and their seed: others than those that are measured."""


def convert(folder: Path) -> None:
    """Writes `openvino-float32.xml` and `openvino-int8.xml`, each with its weights beside it."""
    model = openvino.Core().read_model(folder / "model.onnx")
    openvino.save_model(model, folder / "openvino-float32.xml", compress_to_fp16=False)
    sent = token_ids(lognormal(CALIBRATION, SEED), SEED)
    batches = [{"input_ids": ids, "attention_mask": mask} for _, ids, mask in padded(sent, 1)]
    kind: dict[str, Any] = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": CALIBRATION}
    small = nncf.quantize(model, nncf.Dataset(batches), **kind)
    openvino.save_model(small, folder / "openvino-int8.xml", compress_to_fp16=False)


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
