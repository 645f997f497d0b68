"""The workloads against both tokenizers."""

import random

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmarks.load.target import texts_of
from benchmarks.workloads import MINILM, WORDS, Scale, lognormal, minilm_folder, named, text, token_ids
from harness.random_models.synthetic import tokenizer


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


def test_the_seed_decides_and_bounds_are_kept() -> None:
    """Texts and lengths; lengths that are cut at 512 keep their mean of 126, ids lie above what a skiplist may name."""
    assert texts_of(named()["short"], 3) == texts_of(named()["short"], 3) != texts_of(named()["short"], 4)
    assert lognormal(64, 1) == lognormal(64, 1) != lognormal(64, 2)
    assert set(text(MINILM, 40, random.Random(1)).split()) <= set(WORDS)
    assert np.mean(lognormal(256)) == pytest.approx(126, rel=0.02)
    assert max(lognormal(256)) <= 512
    (ids,) = token_ids([5000], vocabulary=1000)
    assert 300 <= ids.min() <= ids.max() < 1000
