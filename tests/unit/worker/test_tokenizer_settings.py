"""Every setting of a tokenizer that changes token ids is honoured as transformers does it, or refused by name."""

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoTokenizer,
    BertTokenizer,
    DebertaV2Tokenizer,
    MPNetTokenizer,
    PreTrainedTokenizerBase,
    Qwen2Tokenizer,
    RobertaTokenizer,
    TokenizersBackend,
    XLMRobertaTokenizer,
)

from gpu_worker.repository import tokenizer
from gpu_worker.repository.tokenizer import TokenizerReader
from shared.errors import ModelRefused
from support.tiny import write_json

WORDS = ["a", "b", "c", "ab", "abc", "##b", "##bc", "Ab", "É", "E", "e", "é", "字", "!"]
WORDS += ["[SEP]", "[MASK]", "<mask>", "</s>", "own"]
LETTERS = [*"abcAeEdnowskm<>/[]SPMK!"]
LETTERS += ["Ġ", "Ġa", "ab", "Ãī", "Ã©", "å", "Ń", "Ĺ"]
TEXTS = ["a", "", "abc ab", " ab  É\n字!", "a [SEP] b [MASK]", "a<mask> </s>b", "own a own", "ab cleaned n't"]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
SPECIAL |= {"unk_token": "[UNK]", "mask_token": "[MASK]"}


def word_pieces(**_: Any) -> Tokenizer:
    names = dict.fromkeys([*SPECIAL.values(), *WORDS])
    made = Tokenizer(models.WordPiece({word: number for number, word in enumerate(names)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return framed(made)


def byte_pairs() -> Tokenizer:
    names = dict.fromkeys([*SPECIAL.values(), *LETTERS])
    vocabulary = {word: number for number, word in enumerate(names)}
    made = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("Ġ", "a")], unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return framed(made)


def unigrams() -> Tokenizer:
    scored = [(name, 0.0) for name in SPECIAL.values()] + [(f"▁{word}", -2.0) for word in WORDS]
    scored += [(letter, -6.0) for letter in ("▁", *dict.fromkeys("".join(WORDS)))]
    made = Tokenizer(models.Unigram(scored, unk_id=5))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return framed(made)


def framed(made: Tokenizer) -> Tokenizer:
    """With special tokens, and those around every text."""
    made.add_special_tokens([*SPECIAL.values()])
    ends = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    return made


CLASSES: dict[str, tuple[type[TokenizersBackend], Callable[[], Tokenizer]]] = {
    "TokenizersBackend": (TokenizersBackend, word_pieces),
    "BertTokenizer": (BertTokenizer, word_pieces),
    "MPNetTokenizer": (MPNetTokenizer, word_pieces),
    "RobertaTokenizer": (RobertaTokenizer, byte_pairs),
    "Qwen2Tokenizer": (Qwen2Tokenizer, byte_pairs),
    "XLMRobertaTokenizer": (XLMRobertaTokenizer, unigrams),
    "DebertaV2Tokenizer": (DebertaV2Tokenizer, unigrams),
}
TOKEN = {"content": "own", "lstrip": True, "rstrip": False, "normalized": True, "single_word": False, "special": False}
VALUES: dict[str, list[Any]] = {
    **{role: ["own"] for role in SPECIAL},
    "add_bos_token": [True, False],
    "add_eos_token": [True, False],
    "add_prefix_space": [True, False],
    "added_tokens_decoder": [{"60": TOKEN}, {"60": TOKEN | {"special": True, "normalized": False}}],
    "additional_special_tokens": [["own", "ab"]],
    "clean_up_tokenization_spaces": [True, False],
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": [True],
    "do_lower_case": [True, False],
    "errors": ["ignore"],
    "extra_special_tokens": [["own"], {"image_token": "own"}],
    "fix_mistral_regex": [True, False],
    "init_inputs": [[]],
    "max_len": [4],
    "max_length": [4],
    "model_input_names": [["input_ids"]],
    "model_max_length": [4],
    "model_specific_special_tokens": [{"image_token": "own"}],
    "pad_to_multiple_of": [8],
    "pad_token_type_id": [1],
    "padding": [True],
    "padding_side": ["left"],
    "split_by_punct": [True, False],
    "split_special_tokens": [True, False],
    "stride": [1],
    "strip_accents": [True, False],
    "tokenize_chinese_chars": [True, False],
    "trim_offsets": [True, False],
    "truncation": [True],
    "truncation_side": ["left"],
    "truncation_strategy": ["only_second"],
    "unk_id": [1],
    "verbose": [True],
}
"""Settings that tokenizer_config.json may have, with values to try."""
NOT_SETTINGS = {
    "arguments of saving, loading and asking": "commit_message gguf_file proxies repo_id sanitize_control_tokens "
    "save_jinja_files subfolder token use_source_tokenizer max_target_length",
    "files, and what is read of them": "merges merges_file name_or_path post_processor tokenizer tokenizer_file "
    "tokenizer_object tokenizer_padding tokenizer_truncation vocab vocab_file files_loaded backend",
    "templates, and names of classes": "chat_control_tokens chat_template processor_class response_schema "
    "response_template tokenizer_class",
}
CALLS = {
    "add_special_tokens": "true in every call",
    "is_split_into_words": "false: texts come whole",
    "max_length": "the card's max_tokens",
    "pad_to_multiple_of": "nothing is padded",
    "padding_side": "nothing is padded",
    "padding_strategy": "nothing is padded",
    "split_special_tokens": "from tokenizer_config.json, where true is refused",
    "stride": "no text overflows into another",
    "text": "",
    "text_pair": "",
    "truncation_strategy": "truncate of a request",
}
"""Arguments of a tokenizer's call that change ids, and where they come from here."""


def test_every_setting_that_transformers_reads_is_tried() -> None:
    """By the classes above and by those that they inherit from."""
    known = set(VALUES) | set(" ".join(NOT_SETTINGS.values()).split())
    bases = (PreTrainedTokenizerBase, TokenizersBackend)
    read = {name for base in bases for name in re.findall(r'kwargs\.(?:pop|get)\(\s*"(\w+)"', inspect.getsource(base))}
    read |= {name for kind, _ in CLASSES.values() for name in inspect.signature(kind.__init__).parameters}
    assert {name for name in read - {"self", "args", "kwargs"} if not name.startswith("_")} <= known


def test_every_argument_of_a_call_that_changes_ids_is_known() -> None:
    """What a tokenizer's class sets only when it is called is not in the tokenizer.json that it writes."""
    arguments = {name for name in inspect.signature(TokenizersBackend._encode_plus).parameters if "return" not in name}
    assert arguments - {"self", "kwargs", "verbose"} == set(CALLS)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("file", ["tokenizer_config", "special_tokens_map"])
def test_ids_are_those_of_transformers_or_the_setting_is_refused(tmp_path: Path, kind: str, file: str) -> None:
    """Each setting by itself in tokenizer_config.json; special tokens also as files before it had all of them."""
    for name, values in VALUES.items():
        if file == "special_tokens_map" and name not in {*SPECIAL, "additional_special_tokens", "extra_special_tokens"}:
            continue
        for number, value in enumerate(values):
            folder = tmp_path / f"{name}-{number}"
            folder.mkdir()
            CLASSES[kind][1]().save(str(folder / "tokenizer.json"))
            write_json(folder, tokenizer_config={"tokenizer_class": kind, **SPECIAL})
            settings = json.loads((folder / f"{file}.json").read_text()) if file == "tokenizer_config" else {}
            write_json(folder, **{file: settings | {name: value}})
            expected = AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"]
            made = tokenizer.read(folder, trust_remote_code=False)
            if name == "split_special_tokens" and value:
                with pytest.raises(ModelRefused, match=name):
                    tokenizer.export(made, lowercase=False)
                continue
            reader = TokenizerReader(tokenizer.export(made, lowercase=False))
            reader.check_equals(made, lowercase=False)
            assert [reader.framed(text) for text in TEXTS] == expected, (name, value)


class Reversing(BertTokenizer):
    """A class that changes texts in Python, as those that cut Japanese or Chinese into words do."""

    def _encode_plus(self, text: Any, *args: Any, **options: Any) -> Any:
        return super()._encode_plus(text[::-1], *args, **options)


def test_a_class_that_reads_texts_otherwise_than_the_file_that_it_writes_is_refused() -> None:
    made = Reversing(tokenizer_object=word_pieces())
    with pytest.raises(
        ModelRefused, match=r"\(Reversing\) reads texts otherwise than the tokenizer.json that it writes"
    ):
        TokenizerReader(tokenizer.export(made, lowercase=False)).check_equals(made, lowercase=False)


def test_dropout_is_off_and_told(tmp_path: Path) -> None:
    """A text has the tokens that it has without dropout, each time."""
    made = byte_pairs()
    made.model.dropout = 0.5
    made.save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path, tokenizer_config={"tokenizer_class": "TokenizersBackend", **SPECIAL})
    exported = tokenizer.export(tokenizer.read(tmp_path, trust_remote_code=False), lowercase=False)
    assert exported.notice == tokenizer.WITHOUT_DROPOUT
    text = "ab abc " * 40
    assert TokenizerReader(exported).framed(text) == byte_pairs().encode(text).ids
    assert tokenizer.read_bare(tmp_path).notice == tokenizer.WITHOUT_DROPOUT
