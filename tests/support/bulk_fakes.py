"""The bulk command without services: a client that a test scripts, and runs of the command against some."""

import io
import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from selvage.bulk.flags import parse
from selvage.bulk.job import Meter, Summary, run
from selvage.bulk.sender import Target
from selvage.errors import InputTooLong, SelvageError
from selvage.results import Embeddings
from support.fake_frontend import dense_row


class FakeClient:
    """Answers with rows of the texts alone. `script` may answer, or raise, instead: it is told the texts, and how many
    messages were sent before. `dead`: the card is refused with it. `deadlines`: of the requests for the card."""

    def __init__(self, fingerprint: str = "f" * 64) -> None:
        self.fingerprint = fingerprint
        self.script: Callable[[list[str], int], Embeddings | None] = lambda *_: None
        self.dead: SelvageError | None = None
        self.deadlines: list[float] = []
        self.sent: list[list[str]] = []
        self.options: dict[str, Any] = {}
        self._count = count()

    def model(self, *, timeout: float) -> Any:
        self.deadlines.append(timeout)
        if self.dead is not None:
            raise self.dead
        return SimpleNamespace(id="fake", fingerprint=self.fingerprint, dimensions=3, multi_vector_dimensions=3)

    def embed(self, texts: list[str], **options: Any) -> Embeddings:
        self.sent.append(texts)
        self.options = options
        return self.script(texts, next(self._count)) or embeddings(texts)

    def close(self) -> None:
        pass


def embeddings(texts: Sequence[str]) -> Embeddings:
    """[texts, 3] float32."""
    return Embeddings(
        model="fake",
        token_counts=np.array([len(text) for text in texts], dtype=np.int32),
        truncated=np.array([len(text) > 9 for text in texts]),
        dense=np.stack([dense_row(text) for text in texts]),
    )


def too_long(place: int) -> InputTooLong:
    """What the service says of a text of a message."""
    return InputTooLong(f"texts[{place}] has 602 tokens", field=f"texts[{place}]")


def refuse_bad(texts: list[str], _: int) -> None:
    """Refuses texts that are "bad"."""
    if "bad" in texts:
        raise too_long(texts.index("bad"))


def embed(folder: Path, *arguments: str, clients: Sequence[FakeClient] | None = None, out: Any = None) -> Summary:
    """Runs the command, writing to `folder`. Raises what it raises."""
    options = parse(["--output", str(folder), "--patience", "5", *arguments])
    targets = [Target(f"fake:{place}", client) for place, client in enumerate(clients or [FakeClient()], 1)]
    return run(options, lambda: targets, Meter(out or io.StringIO()))


def jsonl(path: Path, texts: Sequence[Any]) -> str:
    """A file with a row a text, whose ids are `id-0` and so on."""
    path.write_text("".join(json.dumps({"id": f"id-{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    return str(path)


def contents(folder: Path) -> dict[str, Any]:
    """All files that a reader sees; of Parquet the rows, since groups of them may differ."""
    found = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}
    return {
        name: pq.read_table(pa.BufferReader(data)) if name.endswith(".parquet") else data
        for name, data in found.items()
    }


def rows(folder: Path) -> list[dict[str, Any]]:
    """Those with vectors, of all shards, in their order."""
    return [row for path in sorted(folder.glob("part-*.parquet")) for row in pq.read_table(path).to_pylist()]


def bad_rows(folder: Path) -> list[dict[str, Any]]:
    """Those that are listed, of all shards, in their order."""
    return [json.loads(line) for path in sorted(folder.glob("_bad-*")) for line in path.read_text().splitlines()]
