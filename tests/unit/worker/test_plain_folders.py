"""A folder without modules.json: what sentence-transformers 6.2 reads of it counts, and nothing else."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer

from gpu_worker.model.card import card_of
from gpu_worker.model.loading import load
from gpu_worker.repository import reading as repository
from gpu_worker.repository import text_settings
from gpu_worker.repository.recipe import WeightsOf
from shared.errors import ModelRefused
from support.tiny import CPU, assert_as_the_reference, reader, write_encoder, write_json, write_pooled

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ["w1 w2 w3 w4 w5 W6", "w9 w8 w20"]
IGNORED: dict[str, dict[str, Any]] = {
    "sentence_bert_config.json": {"max_seq_length": 4, "do_lower_case": True, "config_args": {"hidden_act": "relu"}},
    "sentence_xlnet_config.json": {"max_seq_length": 4, "tokenizer_args": {"truncation_side": "left"}},
    "1_Pooling/config.json": {"pooling_mode": "cls", "embedding_dimension": 64},
    "2_Dense/config.json": {"in_features": 64, "out_features": 32},
    "config_sentence_transformers.json": {"prompts": {"query": "w7 w7 "}, "default_prompt_name": "query"},
}


def test_files_of_sentence_transformers_do_not_count(folder: Path) -> None:
    """Rows, limit and prompts are those of the folder without the files, as in the reference; a notice names them."""
    for name, content in IGNORED.items():
        write_json(folder, **{name.removesuffix(".json").replace("/", "__"): content})
    assert_as_the_reference(folder, TEXTS)
    model = load(str(folder), CPU)
    assert model.max_tokens == min(SentenceTransformer(str(folder), device="cpu").max_seq_length, 640)
    begin, names = model.notice.split(": ")
    assert begin == "not read, for want of a modules.json"
    assert set(names.split(", ")) == {name.removesuffix("/config.json") for name in IGNORED}
    card = card_of(model)
    assert not card.prompts
    assert not card.default_prompt_name


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
PLACES = ["chat_template.jinja", "tokenizer_config.json", "additional_chat_templates/chat.jinja"]


def put_template(folder: Path, place: str) -> Path:
    file = folder / place
    file.parent.mkdir(exist_ok=True)
    config = file.suffix == ".json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": CHAT}) if config else CHAT)
    return file


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("weights_of", ["causal-lm", "encoder"])
def test_a_chat_template_is_refused_by_its_place(tmp_path: Path, weights_of: WeightsOf, place: str) -> None:
    """The reference puts every text into it (or fails over a template that has a name)."""
    write_encoder(tmp_path, "tiny-qwen3" if weights_of == "causal-lm" else "tiny-bert", weights_of)
    file = put_template(tmp_path, place)
    with pytest.raises(ModelRefused, match=f"{file.name}.* chat template, .* take it away to embed texts as they are"):
        load(str(tmp_path), CPU)


def test_a_chat_template_beside_modules_does_not_count(folder: Path) -> None:
    """The reference reads bare texts then, unless the Transformer's file says otherwise."""
    put_template(folder, "chat_template.jinja")
    write_pooled(folder)
    assert_as_the_reference(folder, TEXTS)


WORDS = " ".join(f"w{number}" for number in range(30))
LIMITS: dict[str, tuple[dict[str, Any], int | None]] = {
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
    "none": ({"max_seq_length": 9, "processing_kwargs": {"text": {"truncation": False}}}, None),
    "null for none": ({"max_seq_length": 9, "processing_kwargs": {"text": {"truncation": None}}}, None),
    "none by name": (
        {"processing_kwargs": {"text": {"truncation": True}, "common": {"truncation": "do_not_truncate"}}},
        None,
    ),
}


@pytest.mark.parametrize("case", LIMITS)
def test_of_several_limits_the_reference_s_holds(folder: Path, case: str) -> None:
    """None: texts are never cut."""
    settings, limit = LIMITS[case]
    write_pooled(folder, sentence_bert_config=settings)
    fed = SentenceTransformer(str(folder), device="cpu").preprocess([WORDS])["input_ids"][0].tolist()
    ids = reader()(WORDS)["input_ids"]
    assert repository.read(folder).max_tokens == limit
    assert fed == ([*ids[: limit - 1], ids[-1]] if limit else ids)


def test_texts_that_are_never_cut_are_read_up_to_the_models_positions(folder: Path) -> None:
    """The limit of the files does not count then."""
    write_pooled(folder, sentence_bert_config=LIMITS["none"][0])
    assert load(str(folder), CPU).max_tokens == 640
    assert_as_the_reference(folder, [WORDS, "w1"])


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
        repository.read(folder)
    harmless = {"image": {"size": 8}, "text": {"padding": "max_length"}}
    write_pooled(folder, sentence_bert_config={"processing_kwargs": harmless})
    repository.read(folder)


def test_every_key_that_the_reference_takes_is_read() -> None:
    taken = set(inspect.signature(Transformer.__init__).parameters) - {"self", "model_name_or_path", "backend"}
    assert text_settings.KEYS - {"model_args", "tokenizer_args", "config_args", "cache_dir"} == taken


def test_an_empty_file_leaves_the_word_to_the_next(folder: Path) -> None:
    """Of the older names the first that holds anything counts."""
    write_pooled(folder, sentence_bert_config={}, sentence_roberta_config={"max_seq_length": 8})
    assert repository.read(folder).max_tokens == SentenceTransformer(str(folder), device="cpu").max_seq_length == 8
