"""ONNX Runtime in a Python of its own; arguments: a folder of `onnx_export`, float32 or int8, and threads."""

import sys
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnxruntime

from benchmarks.peers.answering import Make, answer, texts
from benchmarks.peers.batches import Infer, embed


def load(folder: Path, dtype: str, threads: int) -> Mapping[str, Make]:
    """Loads the graph of a number format. With several streams, each has its share of the threads."""

    @cache
    def session(streams: int) -> Infer:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, threads // streams)
        loaded = onnxruntime.InferenceSession(str(folder / f"{dtype}.onnx"), options, ["CPUExecutionProvider"])

        def infer(ids: Any, mask: Any) -> Any:
            return loaded.run(None, {"input_ids": ids, "attention_mask": mask})[0]

        return infer

    def work(file: str, batch_size: int, streams: int = 1) -> Any:
        return partial(embed, session(streams), texts(file), batch_size, streams)

    session(1)
    return {"embed": work}


if __name__ == "__main__":
    answer(partial(load, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
