"""A process that makes sparse vectors of 16,384 tokens and prints how much memory that took beside the weights.

Argument: tokens a text.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import AutoConfig

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import load
from gpu_worker.schedule.fair_queue import FairQueue
from gpu_worker.schedule.interface import JobSlice
from harness.random_models.shapes import HEADED
from harness.random_models.writing import write
from shared.jobs import Job, RaggedTokens
from support.tiny import CPU, SPARSE, encode, random_ids

TOKENS, VOCABULARY = 16_384, 30_522
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def loaded() -> ModelEngine:
    """BERT's vocabulary on an encoder that weighs nothing."""
    values = SMALL | {"vocab_size": VOCABULARY, "pad_token_id": 0, "initializer_range": 0.2}
    with TemporaryDirectory() as folder:
        write(Path(folder), AutoConfig.for_model("bert", **values), HEADED["tiny-splade"][1])
        return ModelEngine(load(folder, CPU))


def memory(key: str) -> int:
    """Bytes, by Linux: VmRSS now, VmHWM at most. (ru_maxrss would begin with that of the process that started this.)"""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{key}:"))


def main(length: int) -> None:
    engine = loaded()
    texts = RaggedTokens.of(random_ids([length] * (TOKENS // length), vocabulary=VOCABULARY))
    progress = engine.open(Job(id=1, work=encode(SPARSE, sparse_top_k=64), tokens=texts))
    before, steps = memory("VmRSS"), 0
    if length > 1:
        engine.launch([JobSlice(job=progress, start=0, stop=len(texts))]).collect()
        steps = 1
    else:
        queue = FairQueue[int](quantum=TOKENS)
        queue.add_job(1, progress.costs)
        while queue.waiting_tokens:
            for units in queue.next_step(TOKENS).values():
                engine.launch([JobSlice(job=progress, start=units.start, stop=units.stop)]).collect()
                steps += 1
    found = progress.result().sparse
    assert found is not None
    print(json.dumps({"bytes": memory("VmHWM") - before, "steps": steps, "vectors": len(found.lengths)}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
