"""Calls of every kind at random, one in ten of them wrong."""

import random
from typing import Any

from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2
from selvage.v1 import vectors_pb2 as v
from support.references import Calls

OUTPUTS = [v.OUTPUT_KIND_DENSE, v.OUTPUT_KIND_MULTI_VECTOR]
METHODS = [v.SCORING_METHOD_DENSE, v.SCORING_METHOD_LATE_INTERACTION]
"""What tiny-bert has; tiny-bge-m3 has SPARSE and HYBRID as well."""


def text(generator: random.Random, longest: int = 60) -> str:
    return " ".join(f"w{generator.randrange(800)}" for _ in range(generator.randrange(longest)))


def some_call(calls: Calls, generator: random.Random, *, sparse: bool = False) -> tuple[Any, Any]:
    """A method and a request. `sparse`: whether the model has sparse vectors."""
    texts = [text(generator) for _ in range(generator.randint(1, 30))]
    kind = generator.randrange(10)
    outputs = [*OUTPUTS, v.OUTPUT_KIND_SPARSE] if sparse else OUTPUTS
    methods = [*METHODS, v.SCORING_METHOD_SPARSE, v.SCORING_METHOD_HYBRID] if sparse else METHODS
    if kind < 4:
        chosen = generator.sample(outputs, generator.randint(1, len(outputs)))
        options = {"data_type": generator.randrange(6), "dimensions": generator.randint(1, 64)}
        return calls.embedding.Embed, embedding_pb2.EmbedRequest(texts=texts, outputs=chosen, **options)
    if kind < 6:
        method = generator.choice(methods)
        return calls.ranking.Rerank, ranking_pb2.RerankRequest(query=texts[0], documents=texts, method=method)
    if kind < 8:
        layout = generator.choice([v.LAYOUT_PAIRS, v.LAYOUT_MATRIX])
        return calls.ranking.Score, ranking_pb2.ScoreRequest(queries=texts, documents=texts, layout=layout, method=2)
    if kind < 9:
        if generator.random() < 0.3:
            return calls.model.Tokenize, model_pb2.TokenizeRequest(texts=texts)
        side = v.MultiVectors(dimensions=4, lengths=[3, 2], data=bytes(80))
        return calls.ranking.MaxSim, ranking_pb2.MaxSimRequest(queries=side, documents=side)
    return calls.embedding.Embed, embedding_pb2.EmbedRequest(texts=["w1 " * 700])
