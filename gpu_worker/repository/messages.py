"""Models of vectors that read chat messages: their chat template, rendered once around marks.

As sentence-transformers 6 asks them, a text is the message of the user, and its prompt a message of the system before
it. The frontend puts texts into what was rendered, and needs no template language. Queries of ColQwen2 come into a
template of its processor in the same way.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gpu_worker.repository.files import first_line, read_object
from gpu_worker.repository.recipe import LateInteractionRecipe, MessageRecipe
from gpu_worker.repository.rerankers import DATE, PROBES
from gpu_worker.repository.weights import TEXT_SIDES
from shared.errors import ModelRefused

TASKS = ("", "query", "document")
"""Tasks of a text, which a template may ask for: none, and those of encode_query and encode_document."""
FORMS: tuple[tuple[str, Callable[[str], str]], ...] = (("{%s}", str), ("{stripped_%s}", str.strip))
"""What a template may do to a text: put it in as it is, or without the white space at its ends."""
AUGMENTATION = 10
"""Padding tokens that ColQwen2's processor puts behind a query."""
PROCESSORS = ("processor_config.json", "preprocessor_config.json")


def resolve(recipe: MessageRecipe, tokenizer: Any, folder: Path, prompts: Mapping[str, str]) -> MessageRecipe:
    """Fills in the templates. `tokenizer` is transformers', of `folder`. Raises ModelRefused, naming the file.

    A template that has no place for a prompt is refused only where the model has `prompts`.
    """
    if recipe.query_prefix is not None:
        return replace(recipe, templates={"query": _query(recipe.query_prefix, tokenizer, folder)}, bare=False)
    processor = _has_processor(folder)
    template = _template_of_processor(folder) if processor else None
    if DATE in str(template or tokenizer.chat_template):
        raise ModelRefused(
            f"{recipe.source}: modality_config: message: the chat template writes the date ({DATE}): a text would have "
            "another vector each day"
        )

    def render(task: str, text: str, prompt: str = "") -> str:
        turns = (("system", prompt), ("user", text)) if prompt else (("user", text),)
        messages = [
            {"role": role, "content": [{"type": "text", "text": content}] if recipe.structured else content}
            for role, content in turns
        ]
        options = ({"task": task} if task else {}) | recipe.options
        try:
            return str(tokenizer.apply_chat_template(messages, tokenize=False, chat_template=template, **options))
        except Exception as error:  # the template is a program, and may refuse a role
            raise ModelRefused(
                f"{recipe.source}: modality_config: message: the chat template cannot be rendered: {first_line(error)}"
            ) from error

    plain = {task: _with_place(partial(render, task), "text", PROBES, recipe.source) for task in TASKS}
    try:
        prompted = {task: _prompted(partial(render, task), recipe.source) for task in TASKS}
    except ModelRefused:
        if any(prompts.values()):
            raise
        prompted = {}
    return replace(
        recipe,
        templates=_by_task(plain),
        prompted_templates=_by_task(prompted),
        bare=not processor or _begins_itself(tokenizer, [*plain.values(), *prompted.values()], recipe.source),
    )


def _query(prefix: str, tokenizer: Any, folder: Path) -> str:
    """What ColQwen2's processor makes of a query. Raises ModelRefused where no token can stand behind it, and for a
    prefix that would have the text twice."""
    if "{" in prefix:
        raise ModelRefused(f"{folder}: query_prefix is {prefix!r}, must have no brace")
    if tokenizer.pad_token is None:
        raise ModelRefused(f"{folder}: its tokenizer has no pad_token, and such tokens stand behind a query")
    return f"{prefix}{{text}}{tokenizer.pad_token * AUGMENTATION}\n"


def check_late(recipe: MessageRecipe, late: LateInteractionRecipe | None) -> None:
    """Raises ModelRefused where queries of late interaction would be filled up, or begin with a marker.

    sentence-transformers fails on the first; a marker has its place before a text, and not in a message.
    """
    if late and (late.expansion or any(late.markers.values())):
        what = "query_expansion" if late.expansion else "a marker (query_prefix, document_prefix)"
        raise ModelRefused(
            f"{recipe.source}: modality_config: message with {what} is not supported: a chat template has what is "
            "added to a query"
        )


def _prompted(render: Callable[[str, str], str], source: str) -> str:
    """Renders a template with places for a text and its prompt. Raises ModelRefused."""
    form = _with_place(lambda prompt: render("{text}", prompt), "prompt", PROBES[1:], source)
    template = _with_place(lambda text: render(text, "{prompt}"), "text", PROBES, source)
    return template if "{prompt}" in form else template.replace("{prompt}", "{stripped_prompt}")


def _by_task(templates: dict[str, str]) -> dict[str, str]:
    """Leaves out the templates of tasks that are the same as that of any text."""
    return {task: template for task, template in templates.items() if not task or template != templates[""]}


def _with_place(render: Callable[[str], str], name: str, probes: tuple[str, ...], source: str) -> str:
    """Renders a template with a place for a text. Raises ModelRefused where it puts the text in otherwise than once,
    whole."""
    mark = f"{{{name}}}"
    rendered = render(mark)
    count = rendered.count(mark)
    if count != 1:
        raise ModelRefused(
            f"{source}: modality_config: message: the chat template has the {name} {count} times, it must put it in "
            "once"
        )
    for place, form in FORMS:
        if all(render(probe) == rendered.replace(mark, form(probe)) for probe in probes):
            return rendered.replace(mark, place % name)
    raise ModelRefused(
        f"{source}: modality_config: message: the chat template changes the {name}, or what it writes depends on its "
        "content; it must put it in as it is, or without the white space at its ends"
    )


def _has_processor(folder: Path) -> bool:
    """Whether transformers reads texts of the folder by a processor, which has other rules than a tokenizer."""
    config, settings = (read_object(folder / name, missing={}) for name in ("config.json", "tokenizer_config.json"))
    files = any((folder / name).is_file() for name in PROCESSORS)
    return config.get("model_type") in TEXT_SIDES or "processor_class" in settings or files


def _template_of_processor(folder: Path) -> str | None:
    """The template in the file that only processors read; None where the tokenizer's counts."""
    if (folder / "chat_template.jinja").is_file():
        return None
    return read_object(folder / "chat_template.json", missing={}).get("chat_template")


def check_unframed(tokenizer: Any, folder: Path, template: str) -> None:
    """Raises ModelRefused where special tokens go around a pair in a template: only a processor would put them there.

    `tokenizer` puts such tokens around texts.
    """
    if _has_processor(folder) and not _begins_itself(tokenizer, [template], str(folder)):
        raise ModelRefused(
            f"{folder}: its processor puts special tokens around the template of a pair, which is not supported: the "
            "template must begin with the token that begins a text"
        )


def _begins_itself(tokenizer: Any, templates: list[str], source: str) -> bool:
    """Whether templates write the token that begins a text. A processor then adds no special tokens, otherwise it does.

    Raises ModelRefused where one does and another does not.
    """
    begins = {bool(tokenizer.bos_token) and template.startswith(tokenizer.bos_token) for template in templates}
    if len(begins) > 1:
        raise ModelRefused(
            f"{source}: modality_config: message: the chat template begins with {tokenizer.bos_token} only with a "
            "prompt, or only without one, which is not supported"
        )
    return begins == {True}
