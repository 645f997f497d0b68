"""The token ids and the template of a yes/no reranker, found once at load with its own tokenizer.

The files' template renders messages with the roles query and document (sentence-transformers 6). It is rendered here
around marks, so that the frontend needs no template language. A chat template that names neither role, such as plain
ChatML, would print both texts and ask nothing; it counts only where a LogitScore says that the model was trained with
it. The built-in template is Qwen3-Reranker's (arXiv:2506.05176), as its model card shows it.
"""

import re
from dataclasses import replace
from typing import Any

from gpu_worker.repository.files import first_line
from gpu_worker.repository.recipe import ClassifierRecipe
from shared.errors import ModelRefused

QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
MARKS = {"system": "{instruction}", "query": "{query}", "document": "{document}"}


def names_roles(template: str) -> bool:
    """Whether a chat template itself tells a query from a document, by the names of their roles."""
    return all(re.search(f"['\"]{role}['\"]", template) for role in ("query", "document"))


def resolve(recipe: ClassifierRecipe, tokenizer: Any) -> ClassifierRecipe:
    """Fills in ids and templates. `tokenizer` is transformers'. Raises ModelRefused."""
    template, instructed = _templates(recipe, tokenizer)
    if (
        template
        and recipe.needs_template
        and recipe.kind == "yes-no"
        and not names_roles(tokenizer.get_chat_template())
    ):
        raise ModelRefused(
            "no file says how it is asked: its chat template names no role 'query' and no role 'document', and there "
            "is no LogitScore in a modules.json"
        )
    if not template and recipe.builtin_template and _knows(tokenizer, "<|im_start|>", "<think>"):
        template, instructed = QWEN3.replace(MARKS["system"], QWEN3_INSTRUCTION), QWEN3
    if not template and (recipe.needs_template or (recipe.kind == "yes-no" and _has_template(tokenizer))):
        raise ModelRefused("no file says how it is asked about a query and a document (a chat template of such roles)")
    ids = recipe.yes_no
    if recipe.kind == "yes-no" and ids is None:
        ids = _id_of(tokenizer, "yes"), _id_of(tokenizer, "no")
    return replace(recipe, yes_no=ids, template=template, instructed_template=instructed)


def _has_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def _knows(tokenizer: Any, *words: str) -> bool:
    """Whether the tokenizer has a token for every word."""
    return all(tokenizer.convert_tokens_to_ids(word) not in (None, tokenizer.unk_token_id) for word in words)


def _id_of(tokenizer: Any, word: str) -> int:
    identity = tokenizer.convert_tokens_to_ids(word)
    if identity is None or identity == tokenizer.unk_token_id:
        raise ModelRefused(f"the tokenizer has no token {word!r}, which a yes/no reranker scores by")
    return int(identity)


def _templates(recipe: ClassifierRecipe, tokenizer: Any) -> tuple[str, str]:
    """Renders the templates without and with an instruction; empty where the files have none."""
    if not _has_template(tokenizer):
        return "", ""
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
        raise ModelRefused("its chat template puts the document before the query, which is not supported")
    return complete
