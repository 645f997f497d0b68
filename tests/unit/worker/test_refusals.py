"""What cannot be served is refused at load: in one line, with the file and the key at fault."""

from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModelForSequenceClassification

from gpu_worker.model.loading import load
from gpu_worker.repository import reading as repository
from shared.errors import ModelRefused
from support.breakages import BROKEN, LINEAR, refusal, settings
from support.tiny import CPU, assert_as_the_reference, reader, write_encoder, write_pooled


def test_the_repository_itself_loads(whole: Path) -> None:
    """So that every refusal below is for its own reason."""
    assert load(str(whole), CPU).heads.dense is not None


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_repository_is_refused_by_file_and_key(whole: Path, broken: str) -> None:
    change, named = BROKEN[broken]
    change(whole)
    said = refusal(whole)
    assert [part for part in named if part not in said] == [], said


@pytest.mark.parametrize(
    "described",
    [{"default_prompt_name": "query"}, {"default_prompt_name": "q", "prompts": {"q": None, "document": "w5 "}}],
    ids=["unsaid", "null"],
)
def test_a_default_prompt_may_be_empty(whole: Path, described: dict[str, Any]) -> None:
    """The reference has empty ones for queries and documents, and takes null for one."""
    settings("config_sentence_transformers.json", **described)(whole)
    assert_as_the_reference(whole, ["w1 w2 w3"])
    assert not repository.read(whole).default_prompt_name


@pytest.mark.parametrize("named", ["torch.nn.Tanh", "torch.nn.modules.Identity"])
def test_an_activation_has_a_short_and_a_long_name(whole: Path, named: str) -> None:
    """Beside the whole name of its module, which `whole` has; served as the reference serves it."""
    settings(LINEAR, activation_function=named)(whole)
    assert_as_the_reference(whole, ["w1 w2 w3"])


def test_lexical_weights_are_one_number_a_token(whole: Path) -> None:
    torch.save({"weight": torch.ones(2, 64), "bias": torch.ones(2)}, whole / "sparse_linear.pt")
    assert "sparse_linear" in refusal(whole)


@pytest.mark.parametrize("architecture", ["Qwen3ForRewardModel", "BertForQuestionAnswering"])
def test_a_head_that_is_not_known_is_refused(folder: Path, architecture: str) -> None:
    """Not served as if it were an encoder of vectors."""
    settings("config.json", architectures=[architecture])(folder)
    assert f"architectures {architecture} has a head that is not served" in refusal(folder)


@pytest.mark.parametrize("labels", [{"a": "yes", "b": "no"}, ["yes", "no"]])
def test_labels_of_another_form_are_refused(tmp_path: Path, labels: object) -> None:
    write_encoder(tmp_path, "tiny-bert", "sequence-classification", labels=2)
    settings("config.json", id2label=labels)(tmp_path)
    refusal(tmp_path)


def test_a_classifier_that_reads_a_decoder_is_refused(tmp_path: Path) -> None:
    t5 = {"d_model": 64, "d_kv": 16, "num_heads": 4, "d_ff": 64, "num_layers": 2, "decoder_start_token_id": 0}
    config = AutoConfig.for_model("t5", vocab_size=1000, num_labels=1, pad_token_id=0, **t5)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    reader().save_pretrained(tmp_path)
    assert "\n" not in refusal(tmp_path)


def test_the_arguments_of_old_saves_count(tmp_path: Path) -> None:
    write_encoder(tmp_path, "tiny-mistral")
    arguments = {"config_args": {"sliding_window": 2}, "tokenizer_args": {"model_max_length": 32}}
    write_pooled(tmp_path, sentence_bert_config=arguments)
    assert_as_the_reference(tmp_path, ["w1 w2 w3 w4 w5 w6 w7", "w9"])
    oracle = SentenceTransformer(str(tmp_path), device="cpu")
    assert load(str(tmp_path), CPU).max_tokens == oracle.max_seq_length == 32


UNMET: dict[str, tuple[Any, str]] = {
    "a later transformers": (
        {"transformers": ">=99"},
        r"the model wants transformers >=99, and \d+\.[\d.]+ is what is",
    ),
    "an earlier torch by its other name": ({"pytorch": "<1"}, "the model wants torch <1, and"),
    "a package that is not here": ({"no_such-package": ""}, "wants no-such-package , and it is not installed"),
    "a reason": ({"python": {"specifier": "<3", "reason": "print is a word"}}, r"python <3 \(print is a word\), and 3"),
    "a later reference": ({"sentence-transformers": ">=7"}, r"sentence-transformers >=7, and 6\.2\.0 is what is here"),
}
MET: dict[str, Any] = {
    "versions that are here": {
        "transformers": ">=5",
        "torch": ">=2",
        "python": ">=3.11",
        "sentence-transformers": ">5",
    },
    "what cannot be read": {"torch": "newest", "transformers": 5, "tokenizers": {"specifier": None}},
    "no object": ["transformers>=99"],
    "none": None,
}


@pytest.mark.parametrize("case", UNMET)
def test_a_requirement_that_is_not_met_is_refused(folder: Path, case: str) -> None:
    """By the file, what it wants and what is here; the reference fails on it. Without modules it counts for nothing."""
    requirements, words = UNMET[case]
    write_pooled(folder, config_sentence_transformers={"requirements": requirements})
    with pytest.raises(ModelRefused, match=f"config_sentence_transformers.json: requirements: .*{words}") as raised:
        repository.read(folder)
    assert "\n" not in str(raised.value)
    with pytest.raises(ImportError, match="requires"):
        SentenceTransformer(str(folder), device="cpu")
    (folder / "modules.json").unlink()
    repository.read(folder)


@pytest.mark.parametrize("case", MET)
def test_other_requirements_are_passed_over(folder: Path, case: str) -> None:
    """Met ones, and those that the reference passes over."""
    write_pooled(folder, config_sentence_transformers={"requirements": MET[case]})
    assert repository.read(folder).dense is not None
    SentenceTransformer(str(folder), device="cpu")
