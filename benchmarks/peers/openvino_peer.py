"""OpenVINO in a Python of its own; arguments: a folder of `openvino_convert`, a number format, and threads.

What an int8 model does not compute in int8 is computed in the fastest format of the processor.
"""

import sys
import threading
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import openvino

from benchmarks.peers.answering import Make, Refused, answer, texts
from benchmarks.peers.batches import Infer, embed


def load(folder: Path, dtype: str, threads: int) -> Mapping[str, Make]:
    """Loads the model in a number format. Raises Refused for one that this processor lacks."""
    core = openvino.Core()
    able = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if dtype == "bfloat16" and not able:
        raise Refused("OpenVINO does not list BF16 among the capabilities of this processor")
    hint = "bf16" if dtype == "bfloat16" or (dtype == "int8" and able) else "f32"
    file = folder / f"openvino-{'int8' if dtype == 'int8' else 'float32'}.xml"

    @cache
    def compiled(streams: int) -> Infer:
        settings = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": streams}
        loaded, requests = core.compile_model(file, "CPU", settings), threading.local()

        def infer(ids: Any, mask: Any) -> Any:
            if not hasattr(requests, "this"):  # a request serves one thread
                requests.this = loaded.create_infer_request()
            return requests.this.infer([ids, mask])[0].copy()  # its next run overwrites the rows

        return infer

    def work(file: str, batch_size: int, streams: int = 1) -> Any:
        return partial(embed, compiled(streams), texts(file), batch_size, streams)

    compiled(1)
    return {"embed": work}


if __name__ == "__main__":
    answer(partial(load, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
