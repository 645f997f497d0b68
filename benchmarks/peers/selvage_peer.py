"""Our own engine as a peer. It is that of the checkout in which this file lies, so two checkouts can be compared.

Arguments: a model, a number format or int8 (linear layers in int8, the rest in the fastest format), and tokens of the
longest text (0: as the model's files say).
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import our_kernels, ours
from benchmarks.peers.answering import NO_BFLOAT16, Refused, answer, texts
from benchmarks.workloads import Ids
from shared.errors import ModelRefused
from shared.jobs import Job

Work = Callable[[], npt.ArrayLike]


def sides(name: str, dtype: Any, max_tokens: int) -> dict[str, Callable[..., Work]]:
    """Loads the engine and gives the work by name.

    `embed`: `jobs` is the number of jobs that share the texts.

    Raises Refused for a number format that the processor emulates, and for what the engine refuses to load.
    """
    able = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if dtype == "bfloat16" and not able:
        raise Refused(NO_BFLOAT16)
    fastest: Any = ("bfloat16" if "bfloat16" in our_kernels.formats() else "float32") if dtype == "int8" else dtype
    try:
        linear: Any = "int8" if dtype == "int8" else "auto"
        engine = ours.Ours(name, dtype=fastest, linear=linear, max_tokens=max_tokens)
    except ModelRefused as reason:
        raise Refused(str(reason)) from reason
    product = our_kernels.product(engine.model.placement.dtype, int8=dtype == "int8")

    return {
        "embed": lambda file, jobs=1: partial(dense, engine, texts(file), jobs),
        "rerank": lambda file: partial(rerank, engine, ours.job(texts(file), "rerank")),
        "encoder": lambda file: partial(engine.encoder_seconds, texts(file)),
        "operations": lambda: product,
        "products": lambda: lambda: product() / engine.linear_flops,  # as tokens
        "maxsim": _maxsim,
    }


def rerank(engine: ours.Ours, job: Job) -> npt.NDArray[np.float32]:
    """Scores the documents of a rerank."""
    return np.frombuffer(engine.run([job])[0].result.scores, dtype="<f4")


def dense(engine: ours.Ours, all_texts: list[Ids], jobs: int) -> npt.NDArray[np.float32]:
    """Embeds texts as `jobs` jobs at once: unit vectors [S, D]."""
    size = -(-len(all_texts) // jobs)
    parts = [all_texts[start : start + size] for start in range(0, len(all_texts), size)]
    answers = engine.run([ours.job(part) for part in parts])
    rows = [done.result.dense.data for done in answers if done.result.dense is not None]
    return np.frombuffer(b"".join(rows), dtype="<f4").reshape(len(all_texts), -1)


def _maxsim(file: str) -> Work:
    """Makes the scoring of a file's query and documents, whose rows lie end to end as in a step."""
    arrays = np.load(file)
    query, rows = torch.from_numpy(arrays["query"]), torch.from_numpy(arrays["rows"])
    scores = our_kernels.maxsim(query, rows, arrays["lengths"].tolist())
    return lambda: scores().flatten().numpy()


if __name__ == "__main__":
    answer(partial(sides, sys.argv[1], sys.argv[2], int(sys.argv[3])))
