"""A process that makes token rows of one long text and prints how much memory that took above idle, in bytes.

Arguments: tokens of the text, and whether its rows leave in parts (1) or at its end (0). The text of a second, shorter
run takes the memory that any text takes. Memory that is freed goes back to the system, unlike in a worker.
"""

import json
import sys
from pathlib import Path

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.units import PieceLimits
from gpu_worker.model.loading import load
from gpu_worker.schedule.scheduler import Scheduler
from shared.jobs import Job, JobResult
from shared.memory import give_back_large_blocks, give_back_what_is_free
from shared.ragged import RaggedTokens
from support.splade_memory import memory
from support.tiny import CPU, MULTI, encode, random_ids

STEP, CHUNK = 2048, 512


def row_bytes(engine: ModelEngine, length: int, in_parts: bool) -> int:
    """Bytes of all rows of a text, which are dropped as they come."""
    sizes = list[int]()

    def add(_: int, part: JobResult) -> None:
        assert part.tokens is not None
        sizes.append(len(part.tokens.data))

    loop = Scheduler(engine, step_tokens=STEP, queued_tokens=1_000_000, on_part=add)
    text = RaggedTokens.of(random_ids([length]))
    loop.submit(Job(id=1, work=encode(MULTI, in_parts=in_parts), tokens=text))
    for ended in loop.until_idle():
        assert isinstance(ended.outcome, JobResult), ended.outcome
        add(1, ended.outcome)
    return sum(sizes)


def main(length: int, in_parts: bool) -> None:
    model = load("random:long-wide-qwen3", CPU)
    engine = ModelEngine(model, limits=PieceLimits(longest=CHUNK))
    give_back_large_blocks()
    row_bytes(engine, 3 * STEP, in_parts)
    give_back_what_is_free()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew; proc(5)
    idle = memory("VmRSS")
    rows = row_bytes(engine, length, in_parts)
    print(json.dumps({"bytes": memory("VmHWM") - idle, "rows": rows, "idle": idle}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "1")
