"""Text settings of a transformers folder, from sentence_bert_config.json and its kin, and tokenizer_config.json.

A model is refused for keys that would change token ids or weights and that we do not support. The first kind of file
counts only where modules.json says that sentence-transformers wrote the folder.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_worker.repository.files import check_keys, one_of, read_object, whole
from gpu_worker.repository.recipe import WeightsOf
from shared.errors import ModelRefused

NAMES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
"""Names in sentence_NAME_config.json: the first file that holds anything counts, as in sentence-transformers."""
KEYS = {"transformer_task", "processing_kwargs", "modality_config", "module_output_name", "unpad_inputs", "cache_dir"}
KEYS |= {"query_length", "document_length", "query_expansion", "max_seq_length", "do_lower_case"}
KEYS |= {"model_args", "model_kwargs", "tokenizer_args", "config_args", "config_kwargs"}
KEYS |= {"processor_kwargs", "tokenizer_name_or_path"}
"""Keys that sentence-transformers' Transformer takes; it fails on any other."""
TOKENS, SENTENCE, SCORES, LOGITS = "token_embeddings", "sentence_embedding", "scores", "causal_logits"
"""Features that modules read and write, as sentence-transformers calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerTask:
    """A task of a Transformer: the transformers class, the name of its output, and the feature that it writes."""

    weights_of: WeightsOf
    output: str
    feature: str


TASKS = {
    "feature-extraction": TransformerTask(weights_of="encoder", output="last_hidden_state", feature=TOKENS),
    "fill-mask": TransformerTask(weights_of="masked-lm", output="logits", feature=TOKENS),
    "sequence-classification": TransformerTask(weights_of="sequence-classification", output="logits", feature=SCORES),
    "text-generation": TransformerTask(weights_of="causal-lm", output="logits", feature=LOGITS),
    "any-to-any": TransformerTask(weights_of="causal-lm", output="logits", feature=LOGITS),
}
LOADING = {"attn_implementation", "cache_dir", "device_map", "dtype", "local_files_only", "low_cpu_mem_usage"}
LOADING |= {"revision", "token", "torch_dtype", "trust_remote_code", "use_fast", "add_pooling_layer", "use_safetensors"}
"""Arguments of from_pretrained that change no row: the worker loads weights by its own settings."""
PADDING = {"padding", "padding_side", "pad_to_multiple_of", "return_tensors"}
"""Arguments of a tokenizer that matter to padded batches only."""
SIZES = PADDING | {"truncation", "max_length"}
"""Arguments of a tokenizer's call that are read here."""
READING = LOADING | PADDING | {"truncation", "model_max_length", "truncation_side"}
"""Arguments with which a tokenizer may be loaded."""
UNSUPPORTED = "which is not supported"
CUT, WHOLE = (True, "longest_first"), (False, None, "do_not_truncate")
"""Values of `truncation` with which sentence-transformers cuts texts at the limit, and with which it never does."""
LATE = ("query_length", "document_length", "query_expansion")
"""Keys of late interaction that sentence-transformers 6 writes into these files."""
ENDLESS = 10_000_000
"""Limits from here on mean "no limit": tokenizers write 1e30."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSettings:
    """Text settings of a transformers folder, read from the file `named`.

    `config`: overrides of config.json. `chat`: texts go through a chat template, with `structured` contents and
    `chat_options`. `late`: keys of late interaction, null included; `call_limit` is a max_length that overrides their
    lengths. `truncation_side` overrides tokenizer_config.json, as in sentence-transformers. `whole`: texts are never
    cut, so files set no limit for them.
    """

    named: str = ""
    whole: bool = False
    late: dict[str, Any] = field(default_factory=dict)
    call_limit: int | None = None
    padding_side: str | None = None
    truncation_side: str | None = None
    max_tokens: int | None = None
    lowercase: bool = False
    task: TransformerTask = TASKS["feature-extraction"]
    config: dict[str, Any] = field(default_factory=dict)
    chat: bool = False
    structured: bool = False
    chat_options: dict[str, Any] = field(default_factory=dict)


def read(folder: Path) -> TextSettings:
    """Reads the text settings of a Transformer module. Raises ModelRefused, naming file and key."""
    named, settings = _first(folder)
    check_keys(settings, KEYS, named, "which sentence-transformers does not take")
    if settings.get("tokenizer_name_or_path") is not None:
        raise ModelRefused(f"{named}: tokenizer_name_or_path names a tokenizer elsewhere, which is not supported")
    task = TASKS[one_of(settings.get("transformer_task", "feature-extraction"), TASKS, f"{named}: transformer_task")]
    modalities = settings.get("modality_config")
    message = (modalities or {}).get("message")
    processing = settings.get("processing_kwargs") or {}
    common, text, options = ({**(processing.get(key) or {})} for key in ("common", "text", "chat_template"))
    # As in sentence-transformers: what is common goes over what is for texts, but not where there is a template.
    calls = {**common, **text} if message else {**text, **common}
    check_keys(calls, SIZES, f"{named}: processing_kwargs", UNSUPPORTED)
    whole = calls.get("truncation", True) in WHOLE
    if not whole and calls.get("truncation", True) not in CUT:
        raise ModelRefused(f"{named}: processing_kwargs: truncation {calls['truncation']} is not supported")
    if not options.pop("restore_suffix", True):
        raise ModelRefused(f"{named}: processing_kwargs: restore_suffix false is not supported: a template stays whole")
    for key in sorted(SIZES & set(options)):
        raise ModelRefused(f"{named}: processing_kwargs: chat_template has {key}: put it under text")
    reading = _arguments(settings, "tokenizer_args", "processor_kwargs")
    check_keys(reading, READING, f"{named}: tokenizer_args", UNSUPPORTED)
    check_keys(_arguments(settings, "model_args", "model_kwargs"), LOADING, f"{named}: model_args", UNSUPPORTED)
    config = _arguments(settings, "config_args", "config_kwargs")
    if modalities is not None:
        _check_outputs(named, modalities, settings.get("module_output_name"), task)
    call_limit = _limit(calls.get("max_length"), f"{named}: max_length")
    if whole or calls.get("max_length") is not None:
        max_tokens = None if whole else call_limit
    elif reading.get("model_max_length") is not None:
        max_tokens = _limit(reading["model_max_length"], f"{named}: model_max_length")
    elif settings.get("max_seq_length") is not None:
        max_tokens = _limit(settings["max_seq_length"], f"{named}: max_seq_length")
    else:
        max_tokens = tokenizer_limit(folder)
    return TextSettings(
        named=named,
        late={key: settings[key] for key in LATE if key in settings},
        call_limit=call_limit,
        padding_side=calls.get("padding_side") or reading.get("padding_side"),
        truncation_side=reading.get("truncation_side"),
        max_tokens=max_tokens,
        whole=whole,
        lowercase=bool(settings.get("do_lower_case")),
        task=task,
        config={key: value for key, value in config.items() if key not in LOADING},
        chat=message is not None,
        structured=(message or {}).get("format") == "structured",
        chat_options=options,
    )


def tokenizer_limit(folder: Path) -> int | None:
    """Reads the limit for tokens of a text in tokenizer_config.json; None for none. Raises ModelRefused."""
    file = folder / "tokenizer_config.json"
    return _limit(read_object(file, missing={}).get("model_max_length"), f"{file}: model_max_length")


def unread(folder: Path) -> list[str]:
    """Lists files and folders of modules that count only beside a modules.json, as in sentence-transformers."""
    names = (*(f"sentence_{name}_config.json" for name in NAMES), "config_sentence_transformers.json")
    modules = sorted(file.parent.name for file in folder.glob("[0-9]*_*/config.json"))
    return [*(name for name in names if (folder / name).is_file()), *modules]


def _first(folder: Path) -> tuple[str, dict[str, Any]]:
    """The first file that holds anything, and its content."""
    for file in (folder / f"sentence_{name}_config.json" for name in NAMES):
        settings = read_object(file, missing={})
        if settings:
            return str(file), settings
    return "", {}


def _limit(value: Any, where: str) -> int | None:
    """Checks a limit; None stands for "no limit", which tokenizers write as 1e30, some of them as a fraction."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value >= ENDLESS):
        return None
    return whole(value, where)


def _check_outputs(file: str, modalities: dict[str, Any], feature: Any, task: TransformerTask) -> None:
    """Checks that texts go through the model's forward and modules read its usual output. Raises ModelRefused."""
    usual = ("forward", task.output)
    for name in ("text", "message"):
        modality = modalities.get(name)
        if modality is not None and (modality.get("method"), modality.get("method_output_name")) != usual:
            raise ModelRefused(f"{file}: modality_config: {name} must take {task.output} of forward for this task")
    if feature != task.feature:
        raise ModelRefused(f"{file}: modality_config needs the module_output_name {task.feature} for this task")


def _arguments(settings: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Arguments under an old or a new key; the old one overrides the new."""
    return settings.get(old, settings.get(new)) or {}
