"""ONNX Runtime or OpenVINO, each in a Python of its own. Arguments: RUNTIME, a folder of `onnx_export`, number format,
threads; or `convert` and the folder, which OpenVINO needs before.

What OpenVINO's int8 model does not compute in int8 is computed in the fastest format of the processor. Its int8 is
NNCF's static quantisation for transformers, calibrated with texts like those that are measured.
"""

import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.peers.answering import Infer, Make, Refused, answer, embed, padded, texts
from benchmarks.workloads import lognormal, token_ids

CALIBRATION, SEED = 32, 2
"""Texts for calibration, and their seed: others than those that are measured."""


def onnx(folder: Path, dtype: str, threads: int) -> Callable[[int], Infer]:
    """Gives what loads ONNX Runtime's graph of a number format for so many streams."""
    import onnxruntime

    def loaded(streams: int) -> Infer:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, threads // streams)
        session = onnxruntime.InferenceSession(str(folder / f"{dtype}.onnx"), options, ["CPUExecutionProvider"])

        def infer(ids: Any, mask: Any) -> Any:
            return session.run(None, {"input_ids": ids, "attention_mask": mask})[0]

        return infer

    return loaded


def openvino(folder: Path, dtype: str, threads: int) -> Callable[[int], Infer]:
    """Gives what compiles OpenVINO's model for so many streams. Raises Refused for a format that is emulated here."""
    from openvino import Core

    core = Core()
    able = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if dtype == "bfloat16" and not able:
        raise Refused("OpenVINO does not list BF16 among the capabilities of this processor")
    hint = "bf16" if dtype == "bfloat16" or (dtype == "int8" and able) else "f32"
    file = folder / f"openvino-{'int8' if dtype == 'int8' else 'float32'}.xml"

    def loaded(streams: int) -> Infer:
        settings = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": streams}
        compiled, requests = core.compile_model(file, "CPU", settings), threading.local()

        def infer(ids: Any, mask: Any) -> Any:
            if not hasattr(requests, "this"):  # a request serves one thread
                requests.this = compiled.create_infer_request()
            return requests.this.infer([ids, mask])[0].copy()  # its next run overwrites the rows

        return infer

    return loaded


def load(runtime: str, folder: str, dtype: str, threads: str) -> dict[str, Make]:
    """Loads a model. With several streams, each has its share of the threads. Raises Refused."""
    loaded = cache({"onnxruntime": onnx, "openvino": openvino}[runtime](Path(folder), dtype, int(threads)))
    loaded(1)
    return {
        "embed": lambda file, batch_size, streams: partial(embed, loaded(streams), texts(file), batch_size, streams)
    }


def convert(folder: Path) -> None:
    """Writes `openvino-float32.xml` and `openvino-int8.xml`, each with its weights beside it."""
    import nncf
    from openvino import Core, save_model

    model = Core().read_model(folder / "model.onnx")
    save_model(model, folder / "openvino-float32.xml", compress_to_fp16=False)
    sent = token_ids(lognormal(CALIBRATION, SEED), SEED)
    batches = [{"input_ids": ids, "attention_mask": mask} for _, ids, mask in padded(sent, 1)]
    kind: dict[str, Any] = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": CALIBRATION}
    small = nncf.quantize(model, nncf.Dataset(batches), **kind)
    save_model(small, folder / "openvino-int8.xml", compress_to_fp16=False)


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(Path(sys.argv[2]))
    else:
        answer(partial(load, *sys.argv[1:]))
