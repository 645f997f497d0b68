"""Servers of vectors as a load is sent to them: where to, what, who is watched, and their vectors for comparing."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.load.plan import Prepared
from benchmarks.load.target import EMBED, Address, GrpcAddress, HttpAddress
from benchmarks.peers.infinity import Served
from harness.stack import Stack
from selvage.v1 import embedding_pb2
from selvage.v1.embedding_pb2_grpc import EmbeddingServiceStub

Rows = npt.NDArray[np.float32]


class Selvage:
    """Our side, over gRPC."""

    def __init__(self, pair: Stack) -> None:
        self._pair = pair
        self.address: Address = GrpcAddress(servers=(pair.frontends[0].address,), method=EMBED)
        self.pids = {"worker": pair.worker.pid, "frontend": pair.frontends[0].pid}

    def prepared(self, texts: Sequence[str], tokens: int) -> list[Prepared]:
        """One request a text; the generator holds our own counts against what the text was made to have."""
        bodies = (embedding_pb2.EmbedRequest(texts=[text]).SerializeToString() for text in texts)
        return [Prepared(body=body, tokens=tokens) for body in bodies]

    async def embed(self, texts: Sequence[str]) -> Rows:
        """Vectors [N, D]."""
        embedding: Any = EmbeddingServiceStub(self._pair.channel)
        dense = (await embedding.Embed(embedding_pb2.EmbedRequest(texts=texts))).dense
        return np.frombuffer(dense.data, dtype="<f4").reshape(dense.count, dense.dimensions)


class Infinity:
    """Theirs, over HTTP."""

    def __init__(self, server: Served, name: str) -> None:
        self._server = server
        self.address: Address = HttpAddress(servers=(server.url,))
        self.pids = {name: server.pid}

    def prepared(self, texts: Sequence[str], tokens: int) -> list[Prepared]:
        """One request a text. Raises ValueError where its tokenizer counts otherwise, since its replies do not tell."""
        if set(self._server.tokens(texts)) != {tokens}:
            raise ValueError(f"Infinity's tokenizer does not make {tokens} tokens of each text")
        return [Prepared(body=self._server.body([text]), tokens=tokens) for text in texts]

    async def embed(self, texts: Sequence[str]) -> Rows:
        """Vectors [N, D]."""
        return await asyncio.to_thread(self._server.embed, texts)


Side = Selvage | Infinity
