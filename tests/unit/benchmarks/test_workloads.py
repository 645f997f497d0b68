"""The workloads against both tokenizers."""

import random

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmarks.load.target import texts_of
from benchmarks.workloads import MINILM, WORDS, Scale, lognormal, minilm_folder, named, text, token_ids
from gpu_worker.random_models.synthetic import tokenizer


@pytest.fixture(scope="module")
def tokenizers() -> dict[bool, Tokenizer]:
    """MiniLM's, and that of the smallest random shape; by whether it is random."""
    mini = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    mini.no_truncation()
    mini.no_padding()
    return {False: mini, True: Tokenizer.from_buffer(tokenizer(1000).content)}


@pytest.mark.parametrize("scale", ["tiny", "small", "full"])
@pytest.mark.parametrize("name", named())
def test_texts_have_the_tokens_that_the_workload_says(
    name: str, scale: Scale, tokenizers: dict[bool, Tokenizer]
) -> None:
    """Exactly, special tokens and the markers of late interaction included; and no request repeats a text."""
    workload = named(scale)[name]
    synthetic = workload.model.startswith("random:")
    marker = "w1 " if "colbert" in workload.model else ""
    for lengths, texts in list(zip(workload.requests, texts_of(workload, 1), strict=True))[:20]:
        found = tokenizers[synthetic].encode_batch([marker + each for each in texts])
        assert tuple(len(each.ids) for each in found) == lengths
        assert len(set(texts)) == len(texts)


def test_the_seed_decides() -> None:
    """Texts and lengths."""
    assert texts_of(named()["short"], 3) == texts_of(named()["short"], 3) != texts_of(named()["short"], 4)
    assert lognormal(64, 1) == lognormal(64, 1) != lognormal(64, 2)
    assert set(text(MINILM, 40, random.Random(1)).split()) <= set(WORDS)


def test_lengths_keep_their_mean_when_they_are_cut() -> None:
    """126 tokens, at most 512."""
    found = lognormal(256)
    assert np.mean(found) == pytest.approx(126, rel=0.02)
    assert max(found) <= 512


def test_token_ids_stay_inside_the_vocabulary() -> None:
    """Above what a skiplist may name."""
    (ids,) = token_ids([5000], vocabulary=1000)
    assert 300 <= ids.min() <= ids.max() < 1000
