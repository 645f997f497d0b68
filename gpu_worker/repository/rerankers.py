"""Rerankers that read a query beside documents in a text of their own form: the token ids and templates of these texts.

Yes/no: the files' template renders messages with the roles query and document (sentence-transformers 6). It is rendered
here around marks, so that the frontend needs no template language. A chat template that names neither role, such as
plain ChatML, would print both texts and ask nothing; it counts only where a LogitScore says that the model was trained
with it. A score template (score_template.py) goes over all others. The built-in template is Qwen3-Reranker's
(arXiv:2506.05176), as its model card shows it.

Listwise: jina-reranker-v3 and v3.5 read a query and many documents as one text (arXiv:2509.25085). Each document ends
with a marker token, and the query behind them with another one. The model's last hidden states there go through two
layers without biases, and a score is the cosine of the query's row with a document's. No file of such a folder says how
the text is written, only the code that its repository brings; here it stands as data.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_worker.repository.files import first_line, whole
from gpu_worker.repository.recipe import ClassifierRecipe, DenseRecipe, LayerRecipe, ScoreTemplate
from gpu_worker.repository.tokenizer import REMEDY, TokenizerFile, TokenizerReader
from shared.card import SPLIT, Listwise
from shared.errors import ModelRefused

QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
QWEN3_TOKENS = ("<|im_start|>", "<think>")
MARKS = {"system": "{instruction}", "query": "{query}", "document": "{document}"}
PROBES = ("", "a", " \n<A b=\"c\">&'\u00c9{7}' 8\n ", "Ab " * 9999)
"""Texts that a template must put in as they are: no filter, no condition on them."""
SAY = "say how it is asked by --score-template (docs/models.md has what to give for some rerankers)"
DATE = "strftime_now"
"""What transformers gives templates for the time of rendering."""
LISTWISE = "JinaForRanking"
OPENING = (
    "<|im_start|>system\n"
    "You are a search relevance expert who can determine a ranking of the passages based on how relevant they are to "
    "the query. If the query is a question, how relevant a passage is depends on how well it answers the question. If "
    "not, try to analyze the intent of the query and assess how well each passage satisfies the intent. If an "
    "instruction is provided, you should follow the instruction when determining the ranking.<|im_end|>\n"
    "<|im_start|>user\n"
    "I will provide you with {count} passages, each indicated by a numerical identifier. Rank the passages based on "
    "their relevance to query: {query}\n"
)
INSTRUCTION = "<instruct>\n{instruction}\n</instruct>\n"
DOCUMENT = '<passage id="{number}">\n{document}<|embed_token|>\n</passage>\n'
CLOSING = "<query>\n{query}<|rerank_token|>\n</query><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
BLOCK_DOCUMENTS = 125
LENGTHS, WINDOWED_LENGTHS = (512, 2048), (1024, 8192)
"""Most tokens of a query and of a document: of v3, whose layers attend to all tokens before, and of v3.5, most of whose
layers attend within a window."""


def names_roles(template: str) -> bool:
    """Whether a chat template itself tells a query from a document, by the names of their roles."""
    return all(re.search(f"['\"]{role}['\"]", template) for role in ("query", "document"))


def resolve_yes_no(recipe: ClassifierRecipe, tokenizer: Any) -> ClassifierRecipe:
    """Fills in ids and templates. `tokenizer` is transformers'. Raises ModelRefused."""
    question, asks_yes_no, ids = recipe.score_template, recipe.kind == "yes-no", recipe.yes_no
    if question:
        template, instructed = _rendered(question, tokenizer)
    else:
        template, instructed = _of_files(recipe, tokenizer)
    if question and question.true_token is not None:
        yes, no = _answer(question, "true_token", tokenizer), _answer(question, "false_token", tokenizer)
        assert yes is not None
        if yes == no:
            raise ModelRefused(f"{question.source}: true_token and false_token are the same token, {yes}")
        ids = yes, no
    if asks_yes_no and ids is None:
        yes, no = _find(tokenizer, "yes"), _find(tokenizer, "no")
        if yes is None or no is None:
            raise ModelRefused("the tokenizer has no tokens 'yes' and 'no', which a yes/no reranker scores by")
        ids = yes, no
    return replace(recipe, yes_no=ids, template=template, instructed_template=instructed, score_template=None)


def _of_files(recipe: ClassifierRecipe, tokenizer: Any) -> tuple[str, str]:
    """The templates without and with an instruction, by the files or built in; empty where a pair is two segments."""
    has_template = bool(getattr(tokenizer, "chat_template", None))
    template, instructed = _templates(recipe, tokenizer) if has_template else ("", "")
    asks_yes_no = recipe.kind == "yes-no"
    if template and recipe.needs_template and asks_yes_no and not names_roles(tokenizer.get_chat_template()):
        raise ModelRefused(
            "no file says how it is asked: its chat template names no role 'query' and no role 'document', and there "
            f"is no LogitScore in a modules.json; {SAY}"
        )
    if not template and recipe.builtin_template and None not in (_find(tokenizer, word) for word in QWEN3_TOKENS):
        template, instructed = QWEN3.replace(MARKS["system"], QWEN3_INSTRUCTION), QWEN3
    if not template and (recipe.needs_template or (asks_yes_no and has_template)):
        raise ModelRefused(
            f"no file says how it is asked about a query and a document (a chat template of such roles); {SAY}"
        )
    return template, instructed


def _rendered(question: ScoreTemplate, tokenizer: Any) -> tuple[str, str]:
    """Renders a score template without and with an instruction, which is "" where the template has no place for one.

    Raises ModelRefused where it does anything to a text but put it in once.
    """

    def render(query: str, document: str, instruction: str) -> str:
        texts = {"query": query, "document": document}
        messages = [{"role": role, "content": text} for role, text in texts.items()]
        options = {"chat_template": question.template, "instruction": instruction, "split": SPLIT, **texts}
        try:
            return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))
        except Exception as error:  # the template is a program
            raise ModelRefused(f"{question.source}: the template cannot be rendered: {first_line(error)}") from error

    if DATE in question.template:
        raise ModelRefused(f"{question.source}: the template writes the date ({DATE}): scores would change each day")
    marks = {name: f"{{{name}}}" for name in ("query", "document", "instruction")}
    usual = marks | {"instruction": question.instruction}
    plain, instructed = render(**usual), render(**marks)
    for template, texts in ((plain, usual), (instructed, marks)):
        for name, mark in marks.items():
            count = template.count(mark)
            if texts[name] != mark or (name == "instruction" and instructed == plain):
                continue
            if count != 1:
                raise ModelRefused(f"{question.source}: the template has {name} {count} times, it must put it in once")
            for probe in PROBES[name == "instruction" :]:
                if render(**(texts | {name: probe})) != template.replace(mark, probe):
                    raise ModelRefused(
                        f"{question.source}: the template changes {name}, or what it writes depends on its content; it "
                        "must put it in as it is"
                    )
        _holds_marks(template)
    return plain, "" if instructed == plain else instructed


def _answer(question: ScoreTemplate, key: str, tokenizer: Any) -> int | None:
    """The id of an answer, which must be one token; None for one that is not named. Raises ModelRefused."""
    word: str | None = getattr(question, key)
    if word is None:
        return None
    ids = tokenizer(word, add_special_tokens=False)["input_ids"]
    if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
        return int(ids[0])
    identity = _find(tokenizer, word)
    if identity is None:
        raise ModelRefused(
            f"{question.source}: {key} {word!r} must be one token, it is {len(ids)} or none of the model's"
        )
    return identity


def _find(tokenizer: Any, word: str) -> int | None:
    """The id of a word that is one token; None for any other."""
    identity = tokenizer.convert_tokens_to_ids(word)
    return None if identity in (None, tokenizer.unk_token_id) else int(identity)


def _templates(recipe: ClassifierRecipe, tokenizer: Any) -> tuple[str, str]:
    """Renders the templates without and with an instruction; empty for those that do not hold both texts."""
    messages: list[dict[str, Any]] = [
        {"role": role, "content": [{"type": "text", "text": mark}] if recipe.structured else mark}
        for role, mark in MARKS.items()
    ]

    def render(conversation: list[dict[str, Any]]) -> str:
        try:
            return str(tokenizer.apply_chat_template(conversation, tokenize=False, **recipe.chat_options))
        except Exception as error:  # the template is a program, and may refuse these roles
            if recipe.needs_template and not recipe.builtin_template:
                raise ModelRefused(f"the chat template cannot be rendered: {first_line(error)}") from error
            return ""

    plain, instructed = render(messages[1:]), render(messages)
    if not _holds_marks(plain):
        return "", ""
    return plain, instructed if _holds_marks(instructed) and instructed.count(MARKS["system"]) == 1 else ""


def _holds_marks(text: str) -> bool:
    """Whether a text has the marks of query and document once each. Raises ModelRefused where the document is first."""
    query, document = MARKS["query"], MARKS["document"]
    complete = text.count(query) == text.count(document) == 1
    if complete and text.index(document) < text.index(query):
        raise ModelRefused("its template puts the document before the query, which is not supported")
    return complete


def read_listwise(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The heads of a repository whose config.json is `config`: its projector, and how texts are written.

    Raises ModelRefused.
    """
    file = path / "config.json"
    if config.get("model_type") != "qwen3":
        raise ModelRefused(f"{file}: a listwise reranker of the model_type {config.get('model_type')!r}, not qwen3")
    hidden = whole(config.get("hidden_size"), f"{file}: hidden_size", least=2)
    layers = tuple(
        LayerRecipe(
            kind="dense",
            inputs=inputs,
            outputs=outputs,
            activation=f"torch.nn.{activation}",
            weights="model",
            keys={"weight": f"projector.{place}.weight"},
        )
        for place, inputs, outputs, activation in ((0, hidden, hidden // 2, "ReLU"), (2, hidden // 2, 0, "Identity"))
    )
    query_length, document_length = WINDOWED_LENGTHS if _windowed(config) else LENGTHS
    listwise = Listwise(
        query_length=query_length,
        document_length=document_length,
        block_documents=BLOCK_DOCUMENTS,
        dimensions=0,
        opening=OPENING,
        instruction=INSTRUCTION,
        document=DOCUMENT,
        closing=CLOSING,
        document_marker="<|embed_token|>",
        document_marker_id=0,
        query_marker="<|rerank_token|>",
        query_marker_id=0,
    )
    # The mean of a range of one token is the token's row.
    return {"dense": DenseRecipe(poolings=("mean",), layers=layers), "listwise": listwise}


def _windowed(config: dict[str, Any]) -> bool:
    """Whether some layers attend within a window. Where no `layer_types` says it, as transformers' Qwen3 makes them."""
    if config.get("layer_types"):
        return "sliding_attention" in config["layer_types"]
    first, layers = config.get("max_window_layers", 28), config.get("num_hidden_layers", 32)
    return bool(config.get("use_sliding_window")) and first < layers


def resolve_listwise(recipe: Listwise, tokenizer: TokenizerFile, reader: TokenizerReader, rows: int) -> Listwise:
    """Finds the ids of the markers, which must be tokens that the tokenizer never splits.

    `rows`: the number of the model's embeddings. `dimensions` is left for its heads to tell. Raises ModelRefused.
    """
    markers = (recipe.document_marker, recipe.query_marker)
    ids = tokenizer.ids_of(markers)
    for marker in markers:
        if marker not in ids:
            raise ModelRefused(f"its tokenizer has no token {marker}, by which a listwise reranker scores: {REMEDY}")
        if ids[marker] >= rows:
            raise ModelRefused(f"the token {marker} has the id {ids[marker]}, the model {rows} embeddings: {REMEDY}")
        if reader.ids(f"a{marker}\na").count(ids[marker]) != 1:
            raise ModelRefused(f"its tokenizer splits {marker}, by which a listwise reranker scores: {REMEDY}")
    document, query = (ids[marker] for marker in markers)
    return replace(recipe, document_marker_id=document, query_marker_id=query)
