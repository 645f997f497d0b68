"""The HTTP API without a port: calls as an ASGI server makes them."""

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fakes import FakeWorker, card

from frontend_service.api.http.app import ABORT, App
from frontend_service.api.http.pages import all_routes
from frontend_service.domain.limits import ExpectedReply, Limits
from frontend_service.frontend import Frontend
from frontend_service.services.pipeline import Pipeline, ServedModel
from shared.jobs import Encode, Job, JobResult, Rows, SparseRows
from shared.server.calls import Calls
from shared.vectors import OutputKind

JSON = (("content-type", "application/json"),)


class Worker(FakeWorker):
    """Rows tell how many tokens a text has, in eight equal numbers; those of tokens are ones, sparse vectors empty.

    It fails as it is told, and stops while told so.
    """

    def __init__(self, **changes: object) -> None:
        super().__init__(card(**changes))
        self.fails: Exception | None = None
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()
        self.cancelled = 0

    async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
        self.reached.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails is not None:
            raise self.fails
        if not isinstance(job.work, Encode):
            return await super().run(model, job, expected)
        self.jobs.append(job)
        rows = np.repeat(np.array(job.tokens.lengths, dtype="<f4") + np.float32(0.1), 8)
        ones, outputs = np.ones((job.tokens.total, 8), dtype="<f4"), job.work.outputs
        empty = SparseRows(lengths=(0,) * len(job.tokens), indices=b"", values=b"")
        return JobResult(
            dense=Rows(dimensions=8, data=rows.tobytes()),
            tokens=Rows(dimensions=8, data=ones.tobytes()) if OutputKind.MULTI_VECTOR in outputs else None,
            row_lengths=tuple(job.tokens.lengths) if OutputKind.MULTI_VECTOR in outputs else (),
            sparse=empty if OutputKind.SPARSE in outputs else None,
        )


class Wide(Worker):
    """Vectors of half a megabyte each."""

    async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
        await super().run(model, job, expected)
        rows = np.arange(len(job.tokens.lengths) * 128 * 1024, dtype="<f4")
        return JobResult(dense=Rows(dimensions=128 * 1024, data=rows.tobytes()))


@dataclass
class Reply:
    """A reply, or none where nobody was answered."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    parts: list[int] = field(default_factory=list)
    """Bytes of each part in which the body was sent."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[str, str]:
        """The field of an error, or its message where its shape has none, and the message; nothing else is missing."""
        error = self.json.get("error")
        if isinstance(error, dict):
            assert set(error) == {"message", "type", "param", "code"}
            return str(error["param"]), str(error["message"])
        assert set(self.json) in ({"message"}, {"error", "error_type"})
        return (str(error or self.json["message"]),) * 2


class HttpApi:
    """All of it, before a worker of a test's own."""

    def __init__(
        self,
        worker: FakeWorker,
        calls: Calls | None = None,
        *,
        keys: bool = False,
        limits: Limits | None = None,
        **options: Any,
    ) -> None:
        """`options`: the App's."""
        self.worker, self.calls = worker, calls or Calls(timeout=600)
        threads = ThreadPoolExecutor(1)
        service = Pipeline(worker, limits or Limits(), threads, threads, reserve=self.calls.admission.reserve)
        self.frontend = Frontend(service, self.calls)
        self.draining = False
        self.seen: list[tuple[str, int]] = []
        routes = all_routes(
            keys=keys,
            is_draining=lambda: self.draining,
            metrics=lambda: (b"figures 1\n", "text/plain"),
        )
        self.app = App(self.frontend, routes, lambda route, status, _: self.seen.append((route, status)), **options)

    async def ask(
        self,
        path: str,
        body: object = None,
        *,
        method: str = "",
        headers: Sequence[tuple[str, str]] = JSON,
        parts: Sequence[bytes] = (),
        pause: float = 0.0,
        stays_silent: bool = False,
        leaves: asyncio.Event | None = None,
        reads: bool = True,
        abort: Callable[[], None] | None = None,
    ) -> Reply:
        """`body`: bytes, or what is sent as JSON; `parts`: the same in pieces, with a `pause` between; the caller
        `leaves` when it is set, or `stays_silent`: sends all but the last part. Unless it `reads`, the connection must
        be ended by `abort`.
        """
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        coming = list(parts or [raw])
        reply = Reply()

        async def receive() -> dict[str, Any]:
            if len(coming) > stays_silent:
                await asyncio.sleep(pause)
                part = coming.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(coming)}
            await (leaves or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                reply.status = message["status"]
                reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                reply.body += message["body"]
                reply.parts.append(len(message["body"]))
                if not (reads or message["more_body"]):
                    await asyncio.Event().wait()

        length = () if parts else (("content-length", str(len(raw))),)
        scope = {
            "type": "http",
            "method": method or ("GET" if body is None and not parts else "POST"),
            "path": path,
            "http_version": "1.1",
            "headers": [(name.encode(), value.encode()) for name, value in (("host", "localhost"), *headers, *length)],
            "client": ("10.0.0.7", 4711),
            "extensions": {ABORT: abort},
        }
        await self.app(scope, receive, send)
        return reply


APIS: dict[str, HttpApi] = {}


def api_of(**card: Any) -> HttpApi:
    """The API of a model with this card, without jobs of earlier tests: one takes longer to make than to ask."""
    key = repr(card)
    if key not in APIS:
        APIS[key] = HttpApi(Worker(**card))
    api = APIS[key]
    api.worker.jobs.clear()
    return api
