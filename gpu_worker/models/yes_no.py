"""How a yes/no reranker is asked: its token ids and its template, found once at load with its own tokenizer.

The template of the files is one that renders messages with the roles query and document (sentence-transformers 6); it
is rendered around marks, so that the frontend needs no template language. The built-in one is Qwen3-Reranker's
(arXiv:2506.05176), as its model card shows it.
"""

from dataclasses import replace
from typing import Any

from gpu_worker.models.files import first_line
from gpu_worker.models.recipe import ClassifierRecipe, ModelRefused

QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
MARKS = {"system": "{instruction}", "query": "{query}", "document": "{document}"}


def resolve(recipe: ClassifierRecipe, tokenizer: Any) -> ClassifierRecipe:
    """Fills in ids and templates. `tokenizer` is transformers'. Raises ModelRefused."""
    ids = recipe.yes_no or (_id_of(tokenizer, "yes"), _id_of(tokenizer, "no"))
    template, instructed = _templates(tokenizer)
    if not template and recipe.builtin_template:
        template, instructed = QWEN3.replace(MARKS["system"], QWEN3_INSTRUCTION), QWEN3
    elif not template and getattr(tokenizer, "chat_template", None):
        raise ModelRefused("its chat template does not render one message of the role query and then one document")
    return replace(recipe, yes_no=ids, template=template, instructed_template=instructed)


def _id_of(tokenizer: Any, word: str) -> int:
    identity = tokenizer.convert_tokens_to_ids(word)
    if identity is None or identity == tokenizer.unk_token_id:
        raise ModelRefused(f"the tokenizer has no token {word!r}, which a yes/no reranker scores by")
    return int(identity)


def _templates(tokenizer: Any) -> tuple[str, str]:
    """The text around query and document, without and with an instruction; empty where the files have none."""
    if not getattr(tokenizer, "chat_template", None):
        return "", ""
    messages = [{"role": role, "content": mark} for role, mark in MARKS.items()]
    try:
        instructed = str(tokenizer.apply_chat_template(messages, tokenize=False))
        plain = str(tokenizer.apply_chat_template(messages[1:], tokenize=False))
    except Exception as error:  # the template is a program of the repository's; whatever it says, it cannot be used
        raise ModelRefused(f"the chat template cannot be rendered: {first_line(error)}") from error
    if not _asks(plain):
        return "", ""
    return plain, instructed if _asks(instructed) and instructed.count(MARKS["system"]) == 1 else ""


def _asks(text: str) -> bool:
    """Whether a query and then a document stand in it, once each."""
    query, document = MARKS["query"], MARKS["document"]
    return text.count(query) == text.count(document) == 1 and text.index(query) < text.index(document)
