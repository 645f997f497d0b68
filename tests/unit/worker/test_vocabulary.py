"""A tokenizer that cannot belong to its model is refused, and tokens that were never trained are told."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken

from gpu_worker.model.card import card_of
from gpu_worker.model.loading import load
from gpu_worker.repository.tokenizer import TokenizerReader, finish
from shared.errors import ModelRefused
from support.breakages import refusal
from support.checked import checked
from support.late_forms import write_native
from support.tiny import CPU, reader, rows, write_encoder, write_json

pytestmark = pytest.mark.usefixtures("one_thread")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"word{number}" for number in range(244)]


def bare(folder: Path, words: list[str] | None) -> Path:
    """The encoder with no tokenizer but, where there are `words`, a vocab.txt of them."""
    for file in folder.glob("*token*"):
        file.unlink()
    if words is not None:
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    return folder


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (None, "no tokenizer that frontends can use: there is no tokenizer.json, and no vocabulary such as vocab.txt"),
        ([], "tokenizer"),
        ([*SPECIAL, "a", "b"], "its tokenizer has 7 tokens for the model's 1000 embeddings"),
        ([*SPECIAL, *WORDS[:244]], "its tokenizer has 249 tokens for the model's 1000 embeddings"),
    ],
    ids=["none", "empty", "two words", "less than a quarter"],
)
def test_a_folder_without_a_vocabulary_is_refused(folder: Path, words: list[str] | None, why: str) -> None:
    """transformers makes a tokenizer that knows no word, and all texts get one vector."""
    assert why in refusal(bare(folder, words))


def test_check_says_what_the_load_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare(folder, None)
    assert checked(folder) == 2
    assert capsys.readouterr().err == f"--model = {str(folder)!r}: {refusal(folder)}\n"


def test_a_quarter_of_the_matrix_is_enough(folder: Path) -> None:
    letters = [chr(letter) for letter in range(97, 123)]
    words = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *WORDS]
    assert load(str(bare(folder, words[:250])), CPU).notice == ""


def test_a_tokenizer_that_no_frontend_can_use_is_refused() -> None:
    broken = finish({"version": "1.0", "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"b": 0}}}, {})
    with pytest.raises(ModelRefused, match="its tokenizer can read no text: "):
        TokenizerReader(broken)
    with pytest.raises(ModelRefused, match="its tokenizer can read no text: "):
        TokenizerReader(finish({"version": "1.0"}, {}))


@pytest.mark.parametrize("role", ["mask", "pad", "sep"])
def test_a_special_token_beyond_the_matrix_is_refused(folder: Path, role: str) -> None:
    named = reader()
    named.add_special_tokens({f"{role}_token": "<new>"})
    named.save_pretrained(folder)
    assert f"its {role} token has the id 1000, and the model's embeddings end at 999" in refusal(folder)


def test_a_token_of_every_text_beyond_the_matrix_is_refused(folder: Path) -> None:
    """One that the template puts there, without a role."""
    description = json.loads((folder / "tokenizer.json").read_text())
    description["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [1003]
    (folder / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(ModelRefused, match="a token of every text has the id 1003"):
        load(str(folder), CPU)


def test_a_token_that_answers_are_scored_by_is_within_the_matrix(tmp_path: Path) -> None:
    write_encoder(tmp_path, "tiny-qwen3", "causal-lm")
    modules = [
        {"name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"name": "1", "path": "1", "type": "sentence_transformers.cross_encoder.modules.LogitScore"},
    ]
    task = {"transformer_task": "text-generation"}
    write_json(tmp_path, modules=modules, sentence_bert_config=task, **{"1__config": {"true_token_id": 1000}})
    with pytest.raises(ModelRefused, match="reranker scores by has the id 1000"):
        load(str(tmp_path), CPU)


def test_a_token_that_fills_up_queries_is_within_the_matrix(encoder: Path, tmp_path: Path) -> None:
    """An added one, which the vocabulary has and the model has not."""
    expansion = {"strategy": "fixed", "length": 16, "token": "<extra>"}
    folder = write_native(tmp_path / "model", encoder, {}, query_expansion=expansion)
    named = reader()
    named.add_tokens([AddedToken("<extra>")])
    named.save_pretrained(folder)
    with pytest.raises(ModelRefused, match="the token that fills up queries has the id 1000"):
        load(str(folder), CPU)


def test_tokens_that_were_never_trained_are_told_at_load(folder: Path) -> None:
    named = reader()
    named.add_tokens([AddedToken(f"<extra {number}>") for number in range(5)])
    named.save_pretrained(folder)
    model = load(str(folder), CPU)
    said = "tokens beyond the model's 1000 embeddings, and a text with one is refused: '<extra 0>' (1000), "
    assert said in model.notice
    assert "and 2 more" in card_of(model).notice
    assert np.isfinite(rows(model, ["w1 w2"])).all()
