"""What fills a limit by itself is refused at load: nothing would be left of any text, and all would get one answer."""

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerFast

from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from shared.errors import ModelRefused
from support.late_forms import write_pylate
from support.tiny import CPU, NAMES, reader, write_encoder, write_json, write_pooled

pytestmark = pytest.mark.usefixtures("one_thread")
FILLER = " ".join(["w5"] * 224)
ASKED = (
    FILLER + " {% for message in messages %}{{ message['content'] }} "
    "{% if message['role'] == 'query' %}w6 {% elif message['role'] == 'document' %}w7{% endif %}{% endfor %}"
)


def write_reranker(folder: Path, limit: int) -> Path:
    """A yes/no reranker without modules.json whose template takes 226 tokens."""
    write_encoder(folder, "tiny-qwen3", "causal-lm")
    named = reader(model_max_length=limit)
    named.chat_template = ASKED
    named.save_pretrained(folder)
    return folder


def test_a_template_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    """With both numbers and the setting."""
    folder = write_reranker(tmp_path / "reranker", 160)
    said = r"template and a word of each text take 228 tokens, and a text may have 160 tokens .*--max-tokens raises it"
    with pytest.raises(ModelRefused, match=said):
        load(str(folder), CPU)


def test_a_template_within_the_limit_is_served(tmp_path: Path) -> None:
    """A token of each text, and one of an instruction, are enough; the setting that the refusal names helps."""
    assert load(str(write_reranker(tmp_path / "a", 229)), CPU).max_tokens == 229
    assert load(str(write_reranker(tmp_path / "b", 160)), CPU, LoadOptions(max_tokens=229)).max_tokens == 229


@pytest.mark.parametrize(("limit", "fits"), [(2, False), (3, True)])
def test_special_tokens_that_fill_the_limit_are_refused(folder: Path, limit: int, fits: bool) -> None:
    """With two of them and a limit of two, all texts are one text; so they are to the reference."""
    write_pooled(folder, sentence_bert_config={"max_seq_length": limit})
    rows = SentenceTransformer(str(folder), device="cpu").encode(["w1 w2", "w3 w4 w5"])
    assert (np.abs(rows[0] - rows[1]).max() > 0.1) == fits
    if fits:
        assert load(str(folder), CPU).max_tokens == limit
        return
    with pytest.raises(ModelRefused, match="special tokens and a word take 3 tokens, and a text may have 2 tokens"):
        load(str(folder), CPU)


@pytest.mark.parametrize("name", ["query", "anything"])
def test_a_prompt_that_fills_the_limit_is_refused(folder: Path, name: str) -> None:
    described = {"prompts": {name: "w5 " * 6}}
    write_pooled(folder, sentence_bert_config={"max_seq_length": 8}, config_sentence_transformers=described)
    with pytest.raises(ModelRefused, match=f"the prompt '{name}' and a word take 9 tokens, .* 8 tokens"):
        load(str(folder), CPU)
    write_json(folder, config_sentence_transformers={"prompts": {name: "w5 " * 5}})
    assert load(str(folder), CPU).max_tokens == 8


def test_max_tokens_below_a_prompt_is_refused(folder: Path) -> None:
    write_pooled(folder, config_sentence_transformers={"prompts": {"query": "w5 " * 6}})
    with pytest.raises(ModelRefused, match=r"the prompt 'query' .*, and --max-tokens is 8: nothing would be left"):
        load(str(folder), CPU, LoadOptions(max_tokens=8))


def test_a_marker_that_fills_its_side_is_refused(encoder: Path, tmp_path: Path) -> None:
    described = {"model_type": "ColBERT", "query_prefix": "w7 w8 ", "document_prefix": "w7 w8 w9 ", "query_length": 5}
    folder = write_pylate(tmp_path / "model", encoder, described | {"document_length": 5, "do_query_expansion": False})
    with pytest.raises(
        ModelRefused, match=r"prompt 'document' .* take 6 tokens, .* 5 tokens, see document_length in --l"
    ):
        load(str(folder), CPU)
    late = tmp_path / "late.json"
    late.write_text('{"document_length": 6}')
    assert load(str(folder), CPU, LoadOptions(late=late)).late_interaction is not None


def test_pairs_need_a_token_of_each_text(tmp_path: Path) -> None:
    write_encoder(tmp_path, "tiny-bert", "sequence-classification", labels=1)
    with pytest.raises(
        ModelRefused, match="special tokens and a word of each text take 5 tokens, and --max-tokens is 4"
    ):
        load(str(tmp_path), CPU, LoadOptions(max_tokens=4))
    assert load(str(tmp_path), CPU, LoadOptions(max_tokens=5)).max_tokens == 5


def test_the_model_s_positions_are_the_last_word(tmp_path: Path) -> None:
    write_encoder(tmp_path, "tiny-bert")
    config = json.loads((tmp_path / "config.json").read_text())
    PreTrainedTokenizerFast(tokenizer_object=reader().backend_tokenizer, **NAMES).save_pretrained(tmp_path)
    assert config["max_position_embeddings"] == 640
    write_pooled(tmp_path, config_sentence_transformers={"prompts": {"q": "w5 " * 640}})
    with pytest.raises(ModelRefused, match=r"640 tokens by its files \(the model has no more positions\): nothing"):
        load(str(tmp_path), CPU)
