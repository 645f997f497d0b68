"""Starts one worker and two frontends, shows the model card, embeds, reranks, prints tables, and stops."""

from shared.command import CommandParser, begin

if __name__ == "__main__":
    begin("demo")

import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from demo.passages import PASSAGES, QUERIES
from harness.member import MemberFailed
from harness.serving import run
from harness.stack import Stack, stack
from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2, vectors_pb2
from selvage.v1.embedding_pb2_grpc import EmbeddingServiceStub
from selvage.v1.model_pb2_grpc import ModelServiceStub
from selvage.v1.ranking_pb2_grpc import RankingServiceStub

METHODS = {
    "DENSE": vectors_pb2.SCORING_METHOD_DENSE,
    "LATE_INTERACTION": vectors_pb2.SCORING_METHOD_LATE_INTERACTION,
}
SHOWN = 3


def milliseconds(duration: Any) -> str:
    return f"{duration.ToMicroseconds() / 1000:.1f} ms"


async def show_card(pair: Stack, console: Console) -> None:
    models: Any = ModelServiceStub(pair.channel)
    card = (await models.GetModel(model_pb2.GetModelRequest())).card
    table = Table(title="The model, as GetModel tells it", show_header=False)
    for name in ("id", "family", "dimensions", "max_tokens", "pooling", "dtype", "device", "attention", "linear"):
        table.add_row(name, str(getattr(card, name)))
    table.add_row("methods", ", ".join(vectors_pb2.ScoringMethod.Name(method) for method in card.methods))
    table.add_row("fingerprint", card.fingerprint[:16] + "...")
    console.print(table)


async def embed(pair: Stack, console: Console) -> None:
    embeddings: Any = EmbeddingServiceStub(pair.channels[0])
    kinds = [vectors_pb2.OUTPUT_KIND_DENSE, vectors_pb2.OUTPUT_KIND_MULTI_VECTOR]
    start = time.perf_counter()
    response = await embeddings.Embed(embedding_pb2.EmbedRequest(texts=PASSAGES, outputs=kinds))
    wall = time.perf_counter() - start
    timing, dense, multi = response.timing, response.dense, response.multi_vector
    console.print(
        f"\nEmbedded {dense.count} passages ({response.usage.prompt_tokens} tokens) in {wall * 1000:.0f} ms: "
        f"{dense.count} x {dense.dimensions} dense ({len(dense.data):,} bytes) and, from the same forward pass, "
        f"{sum(multi.lengths)} x {multi.dimensions} token vectors ({len(multi.data):,} bytes).\n"
        f"tokenize {milliseconds(timing.tokenize)}, queue {milliseconds(timing.queue)}, "
        f"compute {milliseconds(timing.compute)}, transfer {milliseconds(timing.transfer)}, "
        f"postprocess {milliseconds(timing.postprocess)}\n"
    )


async def rerank(pair: Stack, console: Console) -> None:
    rankings: Any = RankingServiceStub(pair.channels[1])
    for query in QUERIES:
        table = Table(title=f"[bold]{query}", title_justify="left", expand=True)
        table.add_column("method, time", no_wrap=True)
        table.add_column("score", justify="right")
        table.add_column("passage", ratio=1)
        for name, method in METHODS.items():
            request = ranking_pb2.RerankRequest(
                query=query, documents=PASSAGES, method=method, top_n=SHOWN, return_documents=True
            )
            start = time.perf_counter()
            response = await rankings.Rerank(request)
            label = f"{name}\n{(time.perf_counter() - start) * 1000:.0f} ms"
            for row, result in enumerate(response.results):
                lines = label.split("\n")
                table.add_row(lines[row] if row < len(lines) else "", f"{result.score:.3f}", result.document)
            table.add_section()
        console.print(table)


async def main(model: str) -> None:
    console = Console()
    console.print(f"Starting one worker with {model} and two frontends on free ports ...")
    start = time.perf_counter()
    async with stack(model, frontends=2) as pair:
        addresses = ", ".join(frontend.address for frontend in pair.frontends)
        console.print(
            f"Ready after {time.perf_counter() - start:.1f} s: worker {pair.worker.address}, frontends {addresses}"
        )
        await show_card(pair, console)
        await embed(pair, console)
        await rerank(pair, console)
        console.print("Stopping: every member drains ...")
    console.print("Stopped.")


if __name__ == "__main__":
    parser = CommandParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--model", default="minilm", help="what the worker serves (default: minilm)")
    try:
        run(main(parser.parse_args().model))
    except MemberFailed as failed:
        print(failed, file=sys.stderr)
        raise SystemExit(1) from None
