"""A folder without modules.json: what sentence-transformers 6.2 reads of it counts, and nothing else."""

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer

from gpu_worker.model.card import card_of
from gpu_worker.model.loading import load
from gpu_worker.repository import text_settings
from shared.errors import ModelRefused
from support.tiny import CPU, assert_as_the_reference, embed, ids_of, rows, write_encoder, write_json, write_pooled

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ["w1 w2 w3 w4 w5 W6", "w9 w8 w20"]
IGNORED: dict[str, dict[str, Any]] = {
    "sentence_bert_config.json": {"max_seq_length": 4, "do_lower_case": True, "config_args": {"hidden_act": "relu"}},
    "sentence_xlnet_config.json": {"max_seq_length": 4, "tokenizer_args": {"truncation_side": "left"}},
    "1_Pooling/config.json": {"pooling_mode": "cls", "embedding_dimension": 64},
    "2_Dense/config.json": {"in_features": 64, "out_features": 32},
    "config_sentence_transformers.json": {"prompts": {"query": "w7 w7 "}, "default_prompt_name": "query"},
}


@pytest.mark.parametrize("name", IGNORED)
def test_files_of_sentence_transformers_do_not_count(folder: Path, name: str) -> None:
    """Rows, limit and prompts are those of the folder without the file, as in the reference; a notice names it."""
    write_json(folder, **{name.removesuffix(".json").replace("/", "__"): IGNORED[name]})
    assert_as_the_reference(folder, TEXTS)
    model = load(str(folder), CPU)
    assert model.max_tokens == min(SentenceTransformer(str(folder), device="cpu").max_seq_length, 640)
    assert model.notice == f"not read, for want of a modules.json: {name.removesuffix('/config.json')}"
    assert not card_of(model).prompts
    assert not card_of(model).default_prompt_name


def test_with_modules_they_count(folder: Path) -> None:
    """Negative control: the same files, as the reference reads them then."""
    described = IGNORED["config_sentence_transformers.json"]
    write_pooled(
        folder,
        config_sentence_transformers=described,
        sentence_bert_config={"max_seq_length": 9, "do_lower_case": True},
    )
    model, oracle = load(str(folder), CPU), SentenceTransformer(str(folder), device="cpu")
    assert model.max_tokens == oracle.max_seq_length == 9
    assert card_of(model).prompts == described["prompts"]
    assert card_of(model).prompts.items() <= oracle.prompts.items()
    assert not model.notice


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-mistral", "tiny-mistral-bidirectional", "tiny-bert"])
def test_a_causal_language_model_gives_its_last_token(tmp_path: Path, name: str) -> None:
    """As the reference pools it; a mean is up to 2.1 away. A model that is not causal keeps the mean."""
    write_encoder(tmp_path, name, "masked-lm" if name == "tiny-bert" else "causal-lm")
    oracle = SentenceTransformer(str(tmp_path), device="cpu")
    causal = name in ("tiny-qwen3", "tiny-mistral")
    assert oracle[1].pooling_mode == card_of(load(str(tmp_path), CPU)).pooling == ("lasttoken" if causal else "mean")
    assert_as_the_reference(tmp_path, TEXTS)


def test_outputs_may_be_tuples_by_the_config(folder: Path) -> None:
    """return_dict false, which older folders have; the reference serves them too."""
    write_json(folder, config=json.loads((folder / "config.json").read_text()) | {"return_dict": False})
    assert_as_the_reference(folder, TEXTS)


CHAT = "{% for m in messages %}w5 {{ m.role }} w6 {{ m.content }} w7 {% endfor %}"
PLACES: dict[str, tuple[str, str]] = {
    "a file": ("chat_template.jinja", CHAT),
    "a key": ("tokenizer_config.json", CHAT),
    "a named file": ("additional_chat_templates/chat.jinja", CHAT),
}


def put_template(folder: Path, place: str) -> Path:
    name, template = PLACES[place]
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    said = json.loads(file.read_text()) | {"chat_template": template} if place == "a key" else template
    file.write_text(json.dumps(said) if place == "a key" else template)
    return file


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-bert"])
def test_a_chat_template_is_refused_by_its_place(tmp_path: Path, name: str, place: str) -> None:
    """The reference puts every text into it (or fails over a template that has a name): its rows are up to 4 away from
    those of bare texts, which are served again once the template is gone."""
    write_encoder(tmp_path, name, "causal-lm" if name == "tiny-qwen3" else "encoder")
    bare = embed(tmp_path, TEXTS)
    assert np.abs(bare - SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS)).max() < 1e-4
    file = put_template(tmp_path, place)
    with pytest.raises(ModelRefused, match=f"{file.name}.* chat template, .* take it away to embed texts as they are"):
        load(str(tmp_path), CPU)
    oracle = SentenceTransformer(str(tmp_path), device="cpu")
    if place == "a named file":
        with pytest.raises(ValueError, match="multiple chat templates"):
            oracle.encode(TEXTS)
    else:
        assert np.abs(bare - oracle.encode(TEXTS)).max() > 1


def test_a_chat_template_beside_modules_does_not_count(folder: Path) -> None:
    """The reference reads bare texts then, unless the Transformer's file says otherwise."""
    put_template(folder, "a file")
    write_pooled(folder)
    assert_as_the_reference(folder, TEXTS)


SAID: dict[str, tuple[dict[str, Any], int]] = {
    "the module's own": ({"max_seq_length": 9}, 9),
    "the tokenizer's over it": ({"max_seq_length": 9, "tokenizer_args": {"model_max_length": 7}}, 7),
    "old arguments over new": ({"tokenizer_args": {"model_max_length": 7}, "processor_kwargs": {"padding": True}}, 7),
    "a call's over all": (
        {"max_seq_length": 9, "processing_kwargs": {"text": {"max_length": 5, "truncation": True}}},
        5,
    ),
    "what is common to all calls over what is for texts": (
        {"max_seq_length": 9, "processing_kwargs": {"text": {"max_length": 7}, "common": {"max_length": 5}}},
        5,
    ),
}


@pytest.mark.parametrize("said", SAID)
def test_of_several_limits_the_reference_s_holds(folder: Path, said: str) -> None:
    settings, limit = SAID[said]
    write_pooled(folder, sentence_bert_config=settings)
    text = " ".join(f"w{number}" for number in range(30))
    fed = SentenceTransformer(str(folder), device="cpu").preprocess([text])["input_ids"][0].tolist()
    model = load(str(folder), CPU)
    (ids,) = ids_of(model, [text])
    assert [*ids[: model.max_tokens - 1], ids[-1]] == fed
    assert model.max_tokens == len(fed) == limit


WHOLE: dict[str, dict[str, Any]] = {
    "false": {"text": {"truncation": False}},
    "none": {"text": {"truncation": None}},
    "by name": {"text": {"truncation": True}, "common": {"truncation": "do_not_truncate"}},
}


@pytest.mark.parametrize("said", WHOLE)
def test_texts_that_the_reference_never_cuts_are_read_up_to_the_models_positions(folder: Path, said: str) -> None:
    """The limit of the files does not count then."""
    write_pooled(folder, sentence_bert_config={"max_seq_length": 9, "processing_kwargs": WHOLE[said]})
    texts = [" ".join(f"w{number}" for number in range(30)), "w1"]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    model = load(str(folder), CPU)
    assert model.max_tokens == 640
    assert np.abs(rows(model, texts) - expected).max() < 2e-5 * max(1.0, float(np.abs(expected).max()))


@pytest.mark.parametrize(
    ("processing", "named"),
    [
        ({"text": {"truncation": "only_first"}}, "truncation only_first"),
        ({"text": {"add_special_tokens": False}}, "add_special_tokens"),
        ({"text": {"split_special_tokens": True}}, "split_special_tokens"),
        ({"common": {"stride": 2}}, "stride"),
        ({"text": {"logits_to_keep": 0}}, "logits_to_keep"),
        ({"chat_template": {"restore_suffix": False}}, "restore_suffix"),
        ({"chat_template": {"max_length": 8}}, "max_length"),
    ],
)
def test_other_arguments_of_a_call_are_refused_by_name(folder: Path, processing: dict[str, Any], named: str) -> None:
    """What is for images, sounds and videos changes no text."""
    write_pooled(folder, sentence_bert_config={"processing_kwargs": processing})
    with pytest.raises(ModelRefused, match=f"processing_kwargs.*{named}"):
        load(str(folder), CPU)
    write_pooled(
        folder, sentence_bert_config={"processing_kwargs": {"image": {"size": 8}, "text": {"padding": "max_length"}}}
    )
    load(str(folder), CPU)


def test_every_key_that_the_reference_takes_is_read() -> None:
    taken = set(inspect.signature(Transformer.__init__).parameters) - {"self", "model_name_or_path", "backend"}
    assert text_settings.KEYS - {"model_args", "tokenizer_args", "config_args", "cache_dir"} == taken


def test_an_empty_file_leaves_the_word_to_the_next(folder: Path) -> None:
    """Of the older names the first that holds anything counts."""
    write_pooled(folder, sentence_bert_config={}, sentence_roberta_config={"max_seq_length": 8})
    assert load(str(folder), CPU).max_tokens == SentenceTransformer(str(folder), device="cpu").max_seq_length == 8
