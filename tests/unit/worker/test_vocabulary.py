"""A tokenizer that cannot belong to its model is refused, and tokens that were never trained are told."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tokenizers import AddedToken

from gpu_worker.model.card import card_of
from gpu_worker.model.loading import load
from gpu_worker.repository.tokenizer import TokenizerReader, finish
from shared.errors import ModelRefused
from support.checked import checked
from support.late_forms import write_native
from support.tiny import CPU, embed, reader, write_encoder, write_json

pytestmark = pytest.mark.usefixtures("one_thread")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = ["the weather is lovely", "a stadium at night", "copper prices fell"]


def bare(folder: Path, encoder: Path, words: list[str] | None) -> Path:
    """The encoder with no tokenizer but, where there are `words`, a vocab.txt of them."""
    shutil.copytree(encoder, folder)
    for file in folder.glob("*token*"):
        file.unlink()
    if words is not None:
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    return folder


def refusal(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the load says, which is what `--check` says."""
    with pytest.raises(ModelRefused) as raised:
        load(str(folder), CPU)
    capsys.readouterr()
    assert checked(folder) == 2
    assert capsys.readouterr().err == f"--model = {str(folder)!r}: {raised.value}\n"
    return str(raised.value)


def test_a_folder_without_a_tokenizer_is_refused(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers makes one that knows no word, and three texts get one vector from the reference."""
    folder = bare(tmp_path / "model", encoder, None)
    rows = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, normalize_embeddings=True)
    assert (rows @ rows.T).min() > 0.9
    assert (
        "holds no tokenizer that frontends can use: there is no tokenizer.json, and no vocabulary such as vocab.txt"
        in refusal(folder, capsys)
    )


@pytest.mark.parametrize("words", [["a", "b"], [f"word{number}" for number in range(244)]], ids=len)
def test_a_vocabulary_of_a_few_words_is_refused(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    folder = bare(tmp_path / "model", encoder, SPECIAL + words)
    tokens = len(SPECIAL + words)
    assert f"its tokenizer has {tokens} tokens for the model's 1000 embeddings" in refusal(folder, capsys)


def test_a_quarter_of_the_matrix_is_enough(encoder: Path, tmp_path: Path) -> None:
    words = [chr(letter) for letter in range(97, 123)] + [f"##{chr(letter)}" for letter in range(97, 123)]
    words += [f"word{number}" for number in range(250 - len(words) - len(SPECIAL))]
    assert load(str(bare(tmp_path / "model", encoder, SPECIAL + words)), CPU).notice == ""


def test_an_empty_vocabulary_is_refused(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(bare(tmp_path / "model", encoder, []), capsys)
    assert "tokenizer" in said


def test_a_tokenizer_that_no_frontend_can_use_is_refused() -> None:
    broken = finish({"version": "1.0", "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"b": 0}}}, {})
    with pytest.raises(ModelRefused, match="its tokenizer can read no text: "):
        TokenizerReader(broken)
    with pytest.raises(ModelRefused, match="its tokenizer can read no text: "):
        TokenizerReader(finish({"version": "1.0"}, {}))


@pytest.mark.parametrize("role", ["mask", "pad", "sep"])
def test_a_special_token_beyond_the_matrix_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], role: str
) -> None:
    named = reader()
    named.add_special_tokens({f"{role}_token": "<new>"})
    named.save_pretrained(folder)
    assert f"its {role} token has the id 1000, and the model's embeddings end at 999" in refusal(folder, capsys)


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


def test_tokens_that_were_never_trained_are_told_at_load(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = reader()
    named.add_tokens([AddedToken(f"<extra {number}>") for number in range(5)])
    named.save_pretrained(folder)
    model = load(str(folder), CPU)
    said = "tokens beyond the model's 1000 embeddings, and a text with one is refused: '<extra 0>' (1000), "
    assert said in model.notice
    assert "and 2 more" in card_of(model).notice
    assert checked(folder) == 0
    assert said in capsys.readouterr().out
    assert np.isfinite(embed(folder, ["w1 w2"])).all()
