"""A small HTTP server in a process of its own, for tests of benchmarks: GET /health says 200, POST answers with rows.

Arguments: a port, and how the server answers: `rows` (each text's tokens are its words and two), `refuse` (every third
call gets 503) or `helper` (as `rows`, with a process of its own that outlives it unless it is ended).
"""

import base64
import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import numpy as np

NUMBERS = count(1)


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """A row of each text, [length, 1], base64; and how many tokens all texts have."""
    lengths = [len(text.split()) + 2 for text in body["input"]]
    rows = [base64.b64encode(np.array([length, 1], dtype="<f4").tobytes()).decode() for length in lengths]
    entries = [{"index": number, "embedding": row} for number, row in enumerate(rows)]
    return {"data": entries[::-1], "usage": {"prompt_tokens": sum(lengths)}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    connections = 0

    def setup(self) -> None:
        super().setup()
        type(self).connections += 1

    def do_GET(self) -> None:
        self._reply(200, {"connections": self.connections})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        refused = sys.argv[2] == "refuse" and next(NUMBERS) % 3 == 0
        self._reply(503 if refused else 200, {} if refused else answer(body))

    def log_message(self, *_: object) -> None:
        pass

    def _reply(self, status: int, content: dict[str, Any]) -> None:
        sent = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)


if __name__ == "__main__":
    if sys.argv[2] == "helper":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
