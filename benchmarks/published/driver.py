"""The clients of a case, in a process of their own: plain HTTP to either server, and the figures as a line of JSON.

`python -m benchmarks.published.driver '{"row": ..., "case": ..., "url": ...}'`. Every stream is a closed loop: each
client waits for its answer before it sends the next request. Before anything counts, a request of the same shape is
sent, and where seconds are counted some of them pass under the same load. What counts are texts that the server has
not seen: some servers keep what they computed of a text.
"""

import asyncio
import base64
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.load import loops
from benchmarks.load.generator import Window, watched
from benchmarks.load.loops import OK, Call, LoadFailed
from benchmarks.load.processor import peak_mebibytes
from benchmarks.load.target import HttpTarget, texts_of
from benchmarks.published.rows import Case, Row, Stream, rows
from benchmarks.workloads import Kind

WARM_UP = 0.1
"""Seconds of load before the window, as a share of the window's."""
LONGEST = 600.0
"""Seconds after which an answer is given up."""
COMPARED = 1
"""Seed of the texts that are compared before anything is timed, and are sent before anything counts."""
Rows = npt.NDArray[np.float32]
PATHS: dict[Kind, str] = {"dense": "/v1/embeddings", "tokens": "/pooling", "rerank": "/rerank"}
"""Where requests of each kind go: embeddings in OpenAI's shape, token rows by vLLM's /pooling."""
VALUES: dict[Kind, str] = {"dense": "embedding", "tokens": "data"}
"""The field of an answer's entry that has its rows."""


async def drive(
    row: Row, case: Case, url: str, seconds: float, watch: Mapping[str, int], number: int = 0
) -> dict[str, float]:
    """Runs all streams of a case until the measured one's requests are answered, or the seconds are over.

    `watch`: process ids of the server, by name. `number`: the round's. Raises LoadFailed.
    """
    clock, is_counted = asyncio.get_running_loop().time, case.stream.requests > 0
    async with AsyncExitStack() as cleanup:
        targets = [
            await cleanup.enter_async_context(_target(row, stream, url, seed))
            for stream, seed in zip(case.streams, seeds(row, case, number), strict=True)
        ]
        for target in targets:
            await target.check()
        start = clock() + (0 if is_counted else WARM_UP * seconds)
        stop = float("inf") if is_counted else start + seconds
        loads = [
            loops.closed(target, loops.turns(len(stream.workload.requests), stream.requests), stream.clients, stop)
            for target, stream in zip(targets, case.streams, strict=True)
        ]
        window = await watched(loads, start, stop, watch)
    return figures(case, window, latency=row.latency) | {
        f"{name}: peak MiB": peak_mebibytes(pid) for name, pid in watch.items()
    }


def figures(case: Case, window: Window, *, latency: bool = False) -> dict[str, float]:
    """Computes the figures of a window: of the measured stream, of the one beside it, CPU of each process.

    `latency`: of the measured stream all calls count that were under way in the window. Raises LoadFailed where nothing
    of the measured stream counts.
    """
    calls, start, stop = window.calls[0], window.start, window.stop
    if latency or not _answered(loops.counted(calls, start, stop)[0]):  # else all outlast a short window
        inside, seconds = loops.under_way(calls, start, stop)
    else:
        inside, seconds = loops.counted(calls, start, stop)
    if not _answered(inside):
        statuses = sorted({call.status for call in calls})
        raise LoadFailed(f"{case.stream.workload.says}: no answer in the window ({', '.join(statuses)})")
    measured = _of_stream(case.stream, inside, seconds)
    good = measured["requests/s"] * (stop - start)
    if case.beside is not None:
        beside = _of_stream(case.beside, *loops.counted(window.calls[1], start, stop))
        measured |= {f"beside: {name}": value for name, value in beside.items()}
    return measured | {f"{name}: CPU ms/request": spent.whole / good * 1e3 for name, spent in window.spent.items()}


def _answered(calls: Sequence[Call]) -> bool:
    return any(call.status == OK for call in calls)


def _of_stream(stream: Stream, calls: Sequence[Call], seconds: float) -> dict[str, float]:
    measured = loops.figures(calls, seconds, [sum(request) for request in stream.workload.requests])
    return measured | {"errors": float(sum(call.status != OK for call in calls))}


def seeds(row: Row, case: Case, number: int) -> list[int]:
    """Seeds of the texts of a case's streams: others in every case and in every round, which has this `number`."""
    most = max(len(other.streams) for other in row.cases)
    place = number * len(row.cases) + [other.name for other in row.cases].index(case.name)
    return [COMPARED + 1 + place * most + stream for stream in range(len(case.streams))]


def _target(row: Row, stream: Stream, url: str, seed: int) -> Any:
    """Opens the target of a stream: the bodies of its requests, and a session with as many connections as clients."""
    kind, workload = stream.workload.kind, stream.workload
    bodies = [body(kind, row.served_name, texts) for texts in texts_of(workload, seed)]
    first = body(kind, row.served_name, texts_of(workload, COMPARED)[0])
    return HttpTarget.opened(
        f"{url}{PATHS[kind]}", bodies, deadline=LONGEST, first=first, reconnecting=row.reconnecting
    )


def body(kind: Kind, model: str, texts: Sequence[str]) -> bytes:
    """Builds a request as both servers take it. The first text of a rerank is its query."""
    fields: dict[str, Any] = {"model": model}
    if kind == "rerank":
        fields |= {"query": texts[0], "documents": list(texts[1:])}
    else:
        fields |= {"input": list(texts), "encoding_format": "base64"}
    if kind == "tokens":
        fields["task"] = "token_embed"
    return json.dumps(fields).encode()


def rows_of(kind: Kind, reply: bytes, lengths: Sequence[int]) -> list[Rows]:
    """Reads the rows [rows, dimensions] of each text, or the scores [1, documents] of a rerank in the order sent.

    `lengths`: tokens of each text. Raises ValueError where the server counted other tokens than the texts have.
    """
    parsed = json.loads(reply)
    if kind == "rerank":
        scores = {result["index"]: result["relevance_score"] for result in parsed["results"]}
        return [np.array([[scores[number] for number in range(len(lengths) - 1)]], dtype=np.float32)]
    if (counted := parsed["usage"]["prompt_tokens"]) != sum(lengths):
        raise ValueError(f"the texts have {sum(lengths)} tokens, and the server counted {counted}")
    ordered = sorted(parsed["data"], key=lambda entry: entry["index"])
    values = [np.frombuffer(base64.b64decode(entry[VALUES[kind]]), dtype="<f4") for entry in ordered]
    counts = lengths if kind == "tokens" else [1] * len(lengths)
    return [value.reshape(count, -1) for value, count in zip(values, counts, strict=True)]


def main(arguments: str) -> int:
    """Runs the case that the JSON names, and prints its figures."""
    wanted = json.loads(arguments)
    row = rows(wanted["scale"])[wanted["row"]]
    case = row.case(wanted["case"])
    try:
        measured = asyncio.run(drive(row, case, wanted["url"], wanted["seconds"], wanted["watch"], wanted["round"]))
    except LoadFailed as error:
        print(f"{row.name}, {case.name}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
