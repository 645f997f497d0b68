"""A row of two requests, and a fake server that answers it over HTTP."""

import sys

from benchmarks.machine import ROOT
from benchmarks.peers.process import free_port
from benchmarks.published.rows import Case, Row, Stream
from benchmarks.published.servers import Launch
from benchmarks.workloads import Workload

FAKE = [sys.executable, str(ROOT / "tests" / "support" / "http_fake.py")]
TEXTS = Workload(name="texts", says="texts of 5 tokens", model="random:tiny-bert", requests=((5,), (9,)))
CASE = Case(name="2 clients", stream=Stream(workload=TEXTS, clients=2))
ROW = Row(
    name="fake",
    says="texts",
    published="nowhere",
    model="random:tiny-bert",
    dtype="float32",
    max_tokens=64,
    cases=(CASE,),
)


def fake(answers: str) -> Launch:
    """Describes a server that answers as `http_fake.py` names it: `rows`, `refuse` or `helper`."""
    port = str(free_port())
    return Launch(programs={"fake": [*FAKE, port, answers]}, url=f"http://127.0.0.1:{port}")
