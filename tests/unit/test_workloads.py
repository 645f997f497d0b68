"""The workloads against both tokenizers, and what the issue says of them."""

from collections import Counter

import numpy as np
import pytest
from references import mini_lm_path
from tokenizers import Tokenizer

from benchmarks.lengths import lognormal
from benchmarks.load.pattern import Closed
from benchmarks.sizes import CLIENT_COUNTS, PROMPTS, Scale
from benchmarks.workloads import Workload, build, names
from gpu_worker.random_models.synthetic import tokenizer
from selvage.v1 import ranking_pb2


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    """MiniLM's, and the synthetic one of the smallest and of a large shape."""
    mini = Tokenizer.from_file(f"{mini_lm_path()}/tokenizer.json")
    mini.no_truncation()
    mini.no_padding()
    return {"minilm": mini} | {
        name: Tokenizer.from_buffer(tokenizer(size).content) for name, size in (("tiny", 1000), ("random", 30_522))
    }


def counted(workload: Workload, read: Tokenizer) -> list[int]:
    """Tokens of each request, as the services count them: prompt and markers before the text, special ones around."""
    marker = "w1 " if "colbert" in workload.model else ""
    sums = []
    for request in workload.requests:
        message = request.message
        if isinstance(message, ranking_pb2.RerankRequest):
            texts = [marker + text for text in (message.query, *message.documents)]
        else:
            texts = [message.prompt + text for text in message.texts]
        sums.append(sum(len(encoding.ids) for encoding in read.encode_batch_fast(texts)))
    return sums


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("name", names())
def test_workloads_have_the_tokens_that_they_promise(name: str, scale: Scale, tokenizers: dict[str, Tokenizer]) -> None:
    """Exactly, special tokens included; only literal texts of real tokenizers promise nothing."""
    workload = build(name, scale=scale)
    kind = "minilm" if workload.model == "minilm" else "tiny" if "tiny" in workload.model else "random"
    promised = [request.tokens for request in workload.requests]
    if (name, scale) == ("instruct-burst", "small"):
        assert set(promised) == {None}
        assert 38 <= np.mean(counted(workload, tokenizers[kind])) <= 50
    else:
        assert promised == counted(workload, tokenizers[kind])


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("name", names())
def test_no_request_repeats_a_text(name: str, scale: Scale) -> None:
    """A frontend would have it computed once."""
    for request in build(name, scale=scale).requests:
        message = request.message
        texts = message.documents if isinstance(message, ranking_pb2.RerankRequest) else message.texts
        assert len(set(texts)) == len(texts)


def test_synthetic_words_are_known_to_the_smallest_vocabulary(tokenizers: dict[str, Tokenizer]) -> None:
    """So every workload can be tried with a tiny shape."""
    for name in ("token-embed", "instruct-burst", "short", "mixed"):
        workload = build(name, model="random:tiny-bert")
        assert [request.tokens for request in workload.requests] == counted(workload, tokenizers["tiny"])
    late = build("colbert-rerank", model="random:tiny-colbert")
    assert [request.tokens for request in late.requests] == counted(late, tokenizers["tiny"])


@pytest.mark.parametrize("name", names())
def test_the_seed_decides_a_workload(name: str) -> None:
    """The same seed gives the same bytes; another seed other texts, unless the texts are literal."""
    first = [each.body for each in build(name, seed=3).prepared()]
    assert first == [each.body for each in build(name, seed=3).prepared()]
    literal = name in ("token-embed", "instruct-burst")
    assert (first == [each.body for each in build(name, seed=4).prepared()]) == literal


def test_workloads_have_the_patterns_of_the_issue() -> None:
    """Clients, counts, lengths."""
    patterns = {name: build(name, scale="full").pattern for name in names()}
    assert patterns["token-embed"].clients == 4
    assert patterns["instruct-burst"] == Closed(clients=PROMPTS, requests=PROMPTS)
    assert {patterns[name].clients for name in ("colbert-rerank", "short", "medium", "lognormal")} == {64}
    assert build("clients").client_counts == CLIENT_COUNTS == (1, 2, 4, 8, 16, 32, 64, 128)
    sizes = {name: build(name, scale="full").requests[0] for name in ("big-rerank", "bigger-rerank")}
    assert {name: len(each.message.documents) for name, each in sizes.items()} == {
        "big-rerank": 1000,
        "bigger-rerank": 10_000,
    }
    lengths = lognormal(256, 1).tolist()
    assert np.mean(lengths) == pytest.approx(126, rel=0.02)
    assert max(lengths) <= 512


def test_mixed_tells_short_from_long() -> None:
    """One long text to 31 short ones; each kind alone can be had."""
    workload = build("mixed")
    assert Counter(request.kind for request in workload.requests) == {"short": 124, "long": 4}
    assert {request.tokens for request in workload.only("short").requests} == {32}


def test_http_bodies_carry_the_same_texts() -> None:
    """OpenAI's and Jina's shapes."""
    embed, rerank = (build(name).prepared_http("a-model")[0].body for name in ("short", "colbert-rerank"))
    text = build("short").requests[0].message.texts[0]
    assert embed.decode() == f'{{"model": "a-model", "input": ["{text}"], "encoding_format": "base64"}}'
    assert b'"documents": ["' in rerank
    assert b'"top_n": 1' in rerank
