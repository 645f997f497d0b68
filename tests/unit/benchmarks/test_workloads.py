"""The workloads against both tokenizers."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmarks.load.target import texts_of
from benchmarks.workloads import Scale, lognormal, minilm_folder, named, token_ids
from harness.random_models.synthetic import tokenizer


@pytest.mark.parametrize("scale", ["tiny", "small", "full"])
def test_texts_have_the_tokens_that_the_workload_says(scale: Scale) -> None:
    """Exactly, special tokens and the markers of late interaction included; and no request repeats a text."""
    minilm = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    minilm.no_truncation()
    minilm.no_padding()
    synthetic = Tokenizer.from_buffer(tokenizer(1000).content)
    for workload in named(scale).values():
        reader = synthetic if workload.model.startswith("random:") else minilm
        marker = "w1 " if "colbert" in workload.model else ""
        for lengths, texts in list(zip(workload.requests, texts_of(workload, 1), strict=True))[:20]:
            encoded = reader.encode_batch([marker + text for text in texts])
            assert tuple(len(text.ids) for text in encoded) == lengths
            assert len(set(texts)) == len(texts)


def test_the_seed_decides_and_bounds_are_kept() -> None:
    """Texts and lengths; lengths that are cut at 512 keep their mean of 126, ids lie above what a skiplist may name."""
    assert texts_of(named()["short"], 3) == texts_of(named()["short"], 3) != texts_of(named()["short"], 4)
    assert lognormal(64, 1) == lognormal(64, 1) != lognormal(64, 2)
    assert np.mean(lognormal(256)) == pytest.approx(126, rel=0.02)
    assert max(lognormal(256)) <= 512
    (ids,) = token_ids([5000], vocabulary=1000)
    assert 300 <= ids.min() <= ids.max() < 1000
