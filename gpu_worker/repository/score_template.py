"""How a reranker is asked, where a file beside the weights or a user says it: score_template.json, --score-template.

The template is Jinja with `query`, `document`, `instruction` and `split`, or with `messages` of the roles query and
document as vLLM's score templates have them. `rerankers.py` renders it; this module reads the settings alone.
"""

from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from gpu_worker.repository.files import check_inside, check_keys, checked, read_object
from gpu_worker.repository.recipe import Recipe, ScoreTemplate
from shared.errors import ModelRefused

NAME = "score_template.json"
TEXTS = ("template", "template_file", "true_token", "false_token", "instruction")
NUMBERS = {"logit_mean": 0.0, "logit_sigma": 1.0}
"""Numbers with their defaults; they have the names of vLLM's pooler config."""


def read(folder: Path, file: Path | None) -> ScoreTemplate | None:
    """Reads how the reranker in `folder` is asked; None where nothing says it. `file` is that of --score-template.

    A JSON file replaces the one beside the weights; any other file is a template, and replaces the template alone.
    Raises ModelRefused, naming file and key.
    """
    beside = folder / NAME
    source = beside if file is None else file
    if file is not None and file.suffix != ".json":
        settings = read_object(beside, missing={})
        settings.pop("template_file", None)
        settings["template"] = _text_of(file)
    elif file is None and not beside.is_file():
        return None
    else:
        settings = read_object(source)
        _join_file(settings, source)
    return _checked(settings, source)


def _join_file(settings: dict[str, Any], source: Path) -> None:
    """Makes `template_file` of settings their `template`."""
    if ("template" in settings) == ("template_file" in settings):
        raise ModelRefused(f"{source}: it must have one of template and template_file")
    if "template_file" in settings:
        name = checked(settings.pop("template_file"), str, f"{source}: template_file")
        check_inside(source, name)
        settings["template"] = _text_of(source.parent / name)
    else:
        # Jinja drops the last newline of a template, which an editor puts at the end of a file; here there is none.
        settings["template"] = checked(settings["template"], str, f"{source}: template") + "\n"


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{file} cannot be read: {error}") from None


def _checked(settings: dict[str, Any], source: Path) -> ScoreTemplate:
    keys = (*TEXTS, *NUMBERS)
    check_keys(settings, keys, source, f"which is none of {', '.join(keys)}")
    texts = {key: checked(settings[key], str, f"{source}: {key}") for key in TEXTS if settings.get(key) is not None}
    numbers = NUMBERS | {key: settings[key] for key in NUMBERS if key in settings}
    for key, number in numbers.items():
        if not isinstance(number, int | float) or isinstance(number, bool) or not isfinite(number):
            raise ModelRefused(f"{source}: {key} {number!r} must be a finite number")
    if numbers["logit_sigma"] <= 0:
        raise ModelRefused(f"{source}: logit_sigma {numbers['logit_sigma']} must be above 0")
    for key in ("false_token", *(key for key in NUMBERS if key in settings)):
        if key in settings and "true_token" not in texts:
            raise ModelRefused(f"{source}: {key} goes with a true_token, and there is none")
    return ScoreTemplate(
        template=texts["template"],
        true_token=texts.get("true_token"),
        false_token=texts.get("false_token"),
        instruction=texts.get("instruction", ""),
        logit_mean=float(numbers["logit_mean"]),
        logit_sigma=float(numbers["logit_sigma"]),
        source=str(source),
    )


def applied(recipe: Recipe, question: ScoreTemplate) -> Recipe:
    """The recipe of a reranker that is asked so. Raises ModelRefused for a model that scores no pairs by a template."""
    classifier = recipe.classifier
    if classifier is None or classifier.kind == "tokens":
        raise ModelRefused(
            f"{question.source}: the model is no reranker: one that answers by a token is a causal language model, and "
            "its answer is true_token; others have a ForSequenceClassification"
        )
    if classifier.kind != "yes-no" and question.true_token is not None:
        raise ModelRefused(f"{question.source}: true_token: the model has a head of its own for scores")
    if question.true_token is not None:
        classifier = replace(classifier, logit_mean=question.logit_mean, logit_sigma=question.logit_sigma)
    elif classifier.kind == "yes-no" and classifier.yes_no is None and not classifier.builtin_template:
        raise ModelRefused(
            f"{question.source}: it names no true_token, and no file of the model says by which token it answers: give "
            "a JSON file with template_file and true_token"
        )
    return replace(recipe, classifier=replace(classifier, score_template=question))
