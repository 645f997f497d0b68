"""Which end of a long text is cut where a request names none: the one that sentence-transformers cuts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from frontend_service.domain.requests import Truncation
from frontend_service.tokenizing.pairs import PairTexts
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from frontend_service.tokenizing.tokens import TokenizedBatch
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from shared.errors import ModelRefused
from shared.jobs import Classify
from shared.vectors import InputType, TruncationSide
from support.chunks import run_to_end
from support.late_forms import write_native
from support.references import near
from support.tiny import CPU, DENSE, ask, dense_rows, encode, reader, scores, write_encoder, write_json

pytestmark = pytest.mark.usefixtures("remembered")
TEXTS = [" ".join(f"w{number}" for number in range(first, first + length)) for first, length in ((0, 40), (50, 15))]
LEFT, RIGHT = ({"truncation_side": side} for side in ("left", "right"))
FILES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "tokenizer_config.json": {"tokenizer_config": LEFT},
    "tokenizer.json": {
        "tokenizer": {"truncation": {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}}
    },
    "tokenizer_args": {"sentence_bert_config": {"tokenizer_args": LEFT}},
    "processor_kwargs": {"sentence_bert_config": {"processor_kwargs": LEFT}},
    "both": {"sentence_bert_config": {"tokenizer_args": RIGHT}, "tokenizer_config": LEFT},
}


def change(folder: Path, **files: dict[str, Any]) -> None:
    """Adds keys to files that are there."""
    for name, added in files.items():
        write_json(folder, **{name: json.loads((folder / f"{name}.json").read_text()) | added})


def ids_of(tokenized: TokenizedBatch) -> list[list[int]]:
    ids, offsets = np.frombuffer(tokenized.tokens.ids, dtype="<i4"), tokenized.tokens.offsets
    return [each.tolist() for each in np.split(ids, offsets[1:-1])]


def read(model: Model, texts: list[str], cut: Truncation, side: InputType = InputType.UNSPECIFIED) -> list[list[int]]:
    """Ids as a frontend makes them."""
    tokenization = ModelTokenizer(model.tokenizer.content, card_of(model))
    return ids_of(tokenization.texts(texts, "", cut, "texts[{}]", side))


@pytest.mark.parametrize("told", FILES)
def test_vectors_of_long_texts(tmp_path: Path, told: str) -> None:
    """As encoded by the reference, whichever file tells the side, and far from the other side's."""
    write_encoder(tmp_path / "encoder", "tiny-bert")
    modules = [Transformer(str(tmp_path / "encoder"), max_seq_length=12), Pooling(64, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "saved"), create_model_card=False)
    change(tmp_path / "saved", **FILES[told])
    expected = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(TEXTS)
    model = load(str(tmp_path / "saved"), CPU)
    engine, own = ModelEngine(model), card_of(model).truncation_side

    def embed(side: TruncationSide | None) -> np.ndarray:
        texts = read(model, TEXTS, Truncation(truncate=True, side=side))
        return dense_rows(ask(engine, encode(DENSE, normalize=False), texts))

    near(embed(None), expected)
    (other,) = set(TruncationSide) - {own}
    assert np.abs(embed(other) - expected).max() > 0.1


def test_queries_and_documents_of_late_interaction(tmp_path: Path) -> None:
    """Each side within its own length, at its end."""
    write_encoder(tmp_path / "encoder", "tiny-bert")
    folder = write_native(tmp_path / "saved", tmp_path / "encoder", None, query_length=8, document_length=14)
    change(folder, tokenizer_config=LEFT)
    oracle, model = MultiVectorEncoder(str(folder), device="cpu"), load(str(folder), CPU)
    for task, side, length in (("query", InputType.QUERY, 8), ("document", InputType.DOCUMENT, 14)):
        ours = read(model, TEXTS, Truncation(truncate=True), side)
        assert ours == [oracle.preprocess([text], task=task)["input_ids"][0].tolist() for text in TEXTS]
        assert [len(each) for each in ours] == [length] * len(TEXTS)
        assert ours != read(model, TEXTS, Truncation(truncate=True, side=TruncationSide.RIGHT), side)


def test_pairs_of_a_cross_encoder(tmp_path: Path) -> None:
    """Ids and scores, where the first text is longer and where the second is."""
    write_encoder(tmp_path / "encoder", "tiny-bert", "sequence-classification", 1)
    reader(truncation_side="left").save_pretrained(tmp_path / "encoder")
    oracle = CrossEncoder(str(tmp_path / "encoder"), device="cpu", max_length=24)
    oracle.save(str(tmp_path / "saved"), create_model_card=False)
    model = load(str(tmp_path / "saved"), CPU)
    firsts, seconds = [TEXTS[0], "w1 w2", TEXTS[0]], [TEXTS[1], TEXTS[0], "w3"]

    def ids(side: TruncationSide | None) -> TokenizedBatch:
        cut = Truncation(truncate=True, side=side)
        texts = PairTexts(firsts=firsts, seconds=seconds, matrix=False, entry="text_pairs[{}]", cut=cut)
        return run_to_end(ModelTokenizer(model.tokenizer.content, card_of(model)).pairs(texts))

    def logits(tokenized: TokenizedBatch) -> np.ndarray:
        segments = tokenized.second_segments
        return scores(ask(ModelEngine(model), Classify(), ids_of(tokenized), second_segments=segments))[:, 0]

    ours = ids(None)
    assert ids_of(ours) == reader(truncation_side="left")(firsts, seconds, truncation=True, max_length=24)["input_ids"]
    expected = oracle.predict(list(zip(firsts, seconds, strict=True)), activation_fn=torch.nn.Identity())
    near(logits(ours), expected)
    assert np.abs(logits(ids(TruncationSide.RIGHT)) - expected).max() > 0.1


def test_a_side_that_is_none_is_refused(tmp_path: Path) -> None:
    write_encoder(tmp_path, "tiny-bert")
    change(tmp_path, tokenizer_config={"truncation_side": "middle"})
    with pytest.raises(ModelRefused, match=r"the tokenizer cannot be loaded: .*middle"):
        load(str(tmp_path), CPU)
