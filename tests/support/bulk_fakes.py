"""The bulk command without services: a service that a test scripts, and runs of the command against some."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from selvage.bulk.flags import parse
from selvage.bulk.job import Summary, run
from selvage.bulk.meter import Meter
from selvage.errors import SelvageError
from selvage.v1.embedding_pb2 import EmbedStreamResponse, StreamError
from support import fake_frontend


class FakeService:
    """Answers with rows of the texts alone. `script` may answer, or raise, instead: it is told the batch, and how many
    batches were sent before. `dead`: the card is refused with it. `deadlines`: of the requests for the card."""

    def __init__(self, name: str = "fake:1", fingerprint: str = "f" * 64) -> None:
        self.name, self.fingerprint = name, fingerprint
        self.script: Callable[[Any, int], EmbedStreamResponse | None] = lambda *_: None
        self.dead: SelvageError | None = None
        self.deadlines: list[float] = []
        self.sent: list[list[str]] = []
        self._count = count()

    def card(self, seconds: float = 0.0) -> Any:
        self.deadlines.append(seconds)
        if self.dead is not None:
            raise self.dead
        return SimpleNamespace(id="fake", fingerprint=self.fingerprint)

    def replies(self, requests: Iterator[Any]) -> Iterator[EmbedStreamResponse]:
        for each in requests:
            self.sent.append(list(each.request.texts))
            yield self.script(each, next(self._count)) or fake_frontend.answer_batch(each)

    def close(self) -> None:
        pass


def refusal(batch: Any, place: int, reason: str = "INPUT_TOO_LONG") -> EmbedStreamResponse:
    """Of a text of a batch, as the service tells it."""
    field = f"texts[{place}]"
    error = StreamError(code=3, reason=reason, message=f"{field} has 602 tokens", field=field)
    return EmbedStreamResponse(id=batch.id, error=error)


def embed(folder: Path, *arguments: str, services: Sequence[FakeService] | None = None) -> Summary:
    """Runs the command, writing to `folder`. Raises what it raises."""
    options = parse(["--output", str(folder), "--patience", "5", *arguments])
    return run(options, services or [FakeService()], Meter(io.StringIO()))


def jsonl(path: Path, texts: Sequence[Any]) -> str:
    """A file with a row a text, whose ids are `id-0` and so on."""
    path.write_text("".join(json.dumps({"id": f"id-{i}", "text": each}) + "\n" for i, each in enumerate(texts)))
    return str(path)


def contents(folder: Path) -> dict[str, bytes]:
    """All files that a reader sees."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}


def rows(folder: Path, name: str = "part-*.rows.jsonl") -> list[dict[str, Any]]:
    """Of all shards, in their order."""
    return [json.loads(line) for path in sorted(folder.glob(name)) for line in path.read_text().splitlines()]
