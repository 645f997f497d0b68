"""Texts to ids and back, cut and refused."""

import json
from collections.abc import Callable

import pytest
from fakes import WORDS, card, tokenizer_json, words_of
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.tokenizing.pairs import PairTexts
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from frontend_service.tokenizing.tokens import TokenizedBatch, TokenLimits
from shared.errors import InvalidInput, LimitExceeded, UnsupportedTask
from shared.vectors import InputType, TruncationSide
from support.chunks import run_to_end

PROMPTS = {"query": "query : ", "passage": "passage : "}
PLAIN = ModelTokenizer(tokenizer_json(), card())
PROMPTED = ModelTokenizer(tokenizer_json(), card(prompts=PROMPTS, include_prompt=False, max_tokens=100))
LETTERS = st.lists(st.sampled_from("abcdef"), max_size=20)


@pytest.mark.parametrize("usual", TruncationSide)
def test_the_models_own_end_is_cut_where_a_request_names_none(usual: TruncationSide) -> None:
    """What the card says, which a request goes over."""
    tokenization = ModelTokenizer(tokenizer_json(), card(truncation_side=usual))
    for chosen in (None, *TruncationSide):
        cut = Truncation(truncate=True, side=chosen, max_tokens=4)
        tokenized = tokenization.texts(["a b c d"], "", cut, "texts[{}]")
        left = "a b" if (chosen or usual) is TruncationSide.RIGHT else "c d"
        assert words_of(tokenized.tokens) == [f"[CLS] {left} [SEP]"]


SPECIAL = {"<s>": 0, "</s>": 1}
FRAMES = {
    "roberta": lambda prefixed: processors.RobertaProcessing(("</s>", 1), ("<s>", 0), True, prefixed),
    "byte level": lambda prefixed: processors.ByteLevel(trim_offsets=True, add_prefix_space=prefixed),
    "bert": lambda prefixed: processors.BertProcessing(("</s>", 1), ("<s>", 0)),
    "template": lambda prefixed: processors.TemplateProcessing("<s> $A </s> </s>", None, [*SPECIAL.items()]),
    "byte level and template": lambda prefixed: processors.Sequence(
        [FRAMES["byte level"](prefixed), FRAMES["bert"](0)]
    ),
    "nothing": lambda prefixed: None,
}


@pytest.mark.parametrize("side", TruncationSide)
@pytest.mark.parametrize("prefixed", [True, False], ids=["a space before", "as it is"])
@pytest.mark.parametrize("frame", FRAMES)
def test_cut_texts_equal_the_tokenizers_own(frame: str, prefixed: bool, side: TruncationSide) -> None:
    """Ids, offsets and what is special, from the special tokens alone to the whole text, spaces at tokens' ends too."""
    letters = SPECIAL | {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 2)}
    merges = [("Ġ", "Ġ"), ("Ġ", "a"), ("b", "c"), ("Ġ", "bc"), ("a", "Ġ")]
    vocabulary = letters | {first + last: len(letters) + number for number, (first, last) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefixed)
    tokenizer.post_processor = FRAMES[frame](prefixed)
    tokenizer.add_special_tokens([*SPECIAL])
    prompt, text = " bc: ", "  a bc   a é</s> bc d a  bc "
    whole = tokenizer.encode(prompt + text)
    tokenization = ModelTokenizer(tokenizer.to_str().encode(), card(max_tokens=len(whole)))
    for limit in range(max(1, tokenizer.num_special_tokens_to_add(False)), len(whole) + 1):
        cut = Truncation(truncate=True, side=side, max_tokens=limit)
        (shown,) = tokenization.shown([text], prompt, cut, "texts[{}]")
        tokenizer.enable_truncation(limit, direction=side.name.lower())
        expected = tokenizer.encode(prompt + text)
        assert shown.truncated == (limit < len(whole))
        assert (shown.encoding.ids, shown.encoding.offsets) == (expected.ids, expected.offsets)
        assert shown.encoding.special_tokens_mask == expected.special_tokens_mask


@given(st.lists(LETTERS, min_size=1, max_size=5))
def test_the_files_own_truncation_and_padding_are_off(texts: list[list[str]]) -> None:
    """The ids are those of the text and nothing else."""
    tokenized = PROMPTED.texts([" ".join(letters) for letters in texts], "", Truncation(), "texts[{}]")
    assert tokenized.tokens.lengths == tuple(len(letters) + 2 for letters in texts)


LIMITED = ModelTokenizer(
    tokenizer_json(), card(limited_by="--cache-megabytes", chunk_tokens=4, cache_tokens=10, pair_template="")
)
SETTING = r"10 \(the worker's --cache-megabytes\)"


@pytest.mark.parametrize(
    ("tokenize", "error"),
    [
        (
            lambda: LIMITED.texts(["a", "a " * 9], "", Truncation(), "texts[{}]"),
            rf"texts\[1\] .* is {SETTING}; truncate",
        ),
        (lambda: LIMITED.token_ids([[1], [5] * 11], Truncation()), rf"tokenized\[1\] .* is {SETTING}$"),
        (
            lambda: run_to_end(
                LIMITED.pairs(
                    PairTexts(firsts=["a"], seconds=["a " * 9], matrix=True, entry="documents[{}]", cut=Truncation())
                )
            ),
            rf"documents\[0\] .* is {SETTING}; truncate",
        ),
        (lambda: LIMITED.texts(["a"], "", Truncation(max_tokens=11), "texts[{}]"), f"max_tokens is 11, .* {SETTING}"),
    ],
)
def test_a_limit_that_a_setting_lowered_is_named_with_it(tokenize: Callable[[], TokenizedBatch], error: str) -> None:
    """Of texts, token ids, pairs, and of a limit in the request."""
    with pytest.raises(InvalidInput, match=error):
        tokenize()


@pytest.mark.parametrize(("limit", "error"), [(11, LimitExceeded), (1, InvalidInput)])
def test_a_limit_can_only_be_lowered_and_must_leave_room(limit: int, error: type[Exception]) -> None:
    """max_tokens over the model's, or under the special tokens."""
    with pytest.raises(error, match="max_tokens"):
        TokenLimits(card(), added=2).resolve(Truncation(max_tokens=limit))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (PromptChoice(), ""),
        (PromptChoice(literal="x "), "x "),
        (PromptChoice(literal="", input_type=InputType.QUERY), ""),
        (PromptChoice(name="passage"), "passage : "),
        (PromptChoice(input_type=InputType.QUERY), "query : "),
        (PromptChoice(input_type=InputType.DOCUMENT), "passage : "),
    ],
)
def test_prompts_by_text_by_name_and_by_what_the_text_is(choice: PromptChoice, expected: str) -> None:
    """A literal one wins, the empty one switches prompts off; documents find the prompt called passage."""
    assert PROMPTED.prompt(choice) == expected


@pytest.mark.parametrize(
    ("names", "task", "name"),
    [
        (["retrieval.query", "query"], "retrieval.query", "retrieval.query"),
        (["query"], "retrieval.query", "query"),
        (["classification"], "classification", "classification"),
        (["nl2code_query", "nl2code_document"], "nl2code.query", "nl2code_query"),
        (["nl2code_query", "nl2code_document"], "nl2code.passage", "nl2code_document"),
        (["code_query", "code_passage", "document"], "code.passage", "code_passage"),
        (["qa_query"], "qa_query", "qa_query"),
    ],
)
def test_a_task_is_a_prompt_of_that_name(names: list[str], task: str, name: str) -> None:
    """As jina-embeddings-v3 and jina-code-embeddings have them; general tasks do without."""
    tokenization = ModelTokenizer(tokenizer_json(), card(prompts={prompt: f"{prompt} : " for prompt in names}))
    side = InputType.QUERY if task.endswith("query") else InputType.DOCUMENT
    assert tokenization.prompt(PromptChoice(task=task, input_type=side)) == f"{name} : "


@pytest.mark.parametrize(
    "task", ["code.query", "nl2code.passage", "code2code.query", "code2completion.query", "qa.query"]
)
def test_a_task_of_code_needs_a_prompt_of_its_own(task: str) -> None:
    """UNSUPPORTED_TASK, naming what the model has; without a prompt its vectors would be others."""
    for choice in (PromptChoice(task=task, input_type=InputType.QUERY), PromptChoice(task=task, literal="a: ")):
        with pytest.raises(
            UnsupportedTask, match=f"no task '{task}'; it has passage, query, retrieval.query"
        ) as caught:
            PROMPTED.prompt(choice)
        assert caught.value.field == "task"


def test_the_default_prompt_serves_where_nothing_is_said() -> None:
    tokenization = ModelTokenizer(tokenizer_json(), card(prompts=PROMPTS, default_prompt_name="query"))
    assert tokenization.prompt(PromptChoice()) == "query : "


def test_an_unknown_prompt_tells_which_there_are() -> None:
    """A long name is clipped: an error travels as metadata, which has little room."""
    with pytest.raises(UnsupportedTask, match="it has passage, query"):
        PROMPTED.prompt(PromptChoice(name="legal"))
    with pytest.raises(UnsupportedTask, match="it has none") as raised:
        PLAIN.prompt(PromptChoice(name="x" * 10_000))
    assert len(raised.value.message) < 200


def test_a_prompt_left_out_of_pooling_is_counted_without_its_closing_token() -> None:
    assert PROMPTED.texts(["a b"], "query : ", Truncation(), "texts[{}]").prompt_lengths == (3,)
    assert PLAIN.texts(["a b"], "query : ", Truncation(), "texts[{}]").prompt_lengths == (0,)


def broken(**changes: object) -> bytes:
    return json.dumps(json.loads(tokenizer_json()) | changes).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff{",
        b"{}",
        broken(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        broken(pre_tokenizer={"type": "FixedLength", "length": 0}),
        broken(model={"type": "Unigram", "unk_id": 7, "vocab": [["a", -1.0]]}),
        broken(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": False}),
    ],
)
def test_a_broken_file_is_an_ordinary_error_that_names_it(content: bytes) -> None:
    """Also where the library panics, which no handler of exceptions would see."""
    with pytest.raises(ValueError, match=r"^tokenizer\.json: "):
        ModelTokenizer(content, card())


@pytest.mark.parametrize(("side", "left", "left_out"), [("LEFT", "d e f g", 1), ("RIGHT", "query : a b", 3)])
def test_a_cut_prompt_is_left_out_of_pooling_as_far_as_it_survived(side: str, left: str, left_out: int) -> None:
    """From the left the prompt goes first; then only [CLS] is left of what pooling leaves out."""
    cut = Truncation(truncate=True, side=TruncationSide[side], max_tokens=6)
    tokenized = PROMPTED.texts(["a b c d e f g"], "query : ", cut, "texts[{}]")
    assert words_of(tokenized.tokens) == [f"[CLS] {left} [SEP]"]
    assert tokenized.prompt_lengths == (left_out,)


def test_a_prompt_that_fills_the_limit_is_refused_where_pooling_leaves_it_out() -> None:
    cut = Truncation(truncate=True, max_tokens=4)
    with pytest.raises(InvalidInput, match="nothing is left to pool"):
        PROMPTED.texts(["a b c"], "query : ", cut, "texts[{}]")


def test_an_empty_text_without_special_tokens_is_refused_by_name() -> None:
    """Where the tokenizer adds none there is nothing to feed."""
    bare = json.loads(tokenizer_json()) | {"post_processor": None}
    with pytest.raises(InvalidInput, match=r"texts\[1\] has no tokens"):
        ModelTokenizer(json.dumps(bare).encode(), card()).texts(["a", ""], "", Truncation(), "texts[{}]")


def test_two_cuts_at_once_are_the_lower_limit_and_whatever_either_allows() -> None:
    wide, narrow = (
        Truncation(max_tokens=9, field="wide"),
        Truncation(truncate=True, max_tokens=4, field="narrow", bound=True),
    )
    for both in (wide.within(narrow), narrow.within(wide)):
        assert (both.max_tokens, both.field, both.truncate, both.bound) == (4, "narrow", True, True)
    assert Truncation().within(Truncation(side=TruncationSide.LEFT)) == Truncation(side=TruncationSide.LEFT)
    assert wide.within(Truncation(max_tokens=0)).max_tokens == Truncation(max_tokens=0).within(wide).max_tokens == 0
    assert Truncation(truncate=True).within(wide) == Truncation(truncate=True, max_tokens=9, field="wide")


TEMPLATE = "query : {query} passage {document} z :"


def beyond(template: str = "", rows: int = len(WORDS)) -> ModelTokenizer:
    """A tokenizer with one token more than the model has embeddings."""
    tokenizer = Tokenizer.from_str(tokenizer_json().decode())
    tokenizer.add_tokens(["<extra>"])
    return ModelTokenizer(tokenizer.to_str().encode(), card(pair_template=template, vocabulary_size=rows))


def test_a_text_with_a_token_that_the_model_has_no_embedding_for_is_named() -> None:
    """With the token, whether it was added or is of the vocabulary."""
    with pytest.raises(InvalidInput) as raised:
        beyond().texts(["a b", "c <extra> d", "<extra>"], "", Truncation(), "texts[{}]")
    assert raised.value.field == "texts[1]"
    assert str(raised.value) == (
        f"texts[1] has the token '<extra>' ({len(WORDS)}), which the tokenizer knows and the model does not: "
        f"its embeddings end at {len(WORDS) - 1}; leave it out"
    )
    smaller = beyond(rows=len(WORDS) - 1)
    with pytest.raises(InvalidInput, match=f"the token '{WORDS[-1]}'"):
        smaller.texts([WORDS[-1]], "", Truncation(), "texts[{}]")
    assert smaller.texts(["a b"], "", Truncation(), "texts[{}]")


@pytest.mark.parametrize("matrix", [True, False], ids=["every pair", "one by one"])
@pytest.mark.parametrize("template", ["", TEMPLATE], ids=["segments", "template"])
@pytest.mark.parametrize("where", [("a <extra>", "b"), ("a", "<extra> b")], ids=["first", "second"])
def test_pairs_name_the_second_text(template: str, where: tuple[str, str], matrix: bool) -> None:
    """In either form, whichever of both has the token."""
    firsts, seconds = [where[0]] if matrix else ["a", where[0]], ["c", where[1]]
    texts = PairTexts(firsts=firsts, seconds=seconds, matrix=matrix, entry="documents[{}]", cut=Truncation())
    place = 0 if matrix and "<" in where[0] else 1
    with pytest.raises(InvalidInput, match=rf"^documents\[{place}\] or its partner has the token '<extra>'") as raised:
        run_to_end(beyond(template).pairs(texts))
    assert raised.value.field == f"documents[{place}]"
