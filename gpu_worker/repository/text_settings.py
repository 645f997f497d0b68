"""How a transformers folder reads its texts: sentence_bert_config.json and its kin, and tokenizer_config.json.

Keys that would change token ids or weights, and that are not understood here, refuse the model. The first kind of file
counts only where modules.json says that sentence-transformers wrote the folder.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_worker.repository.files import read_object
from gpu_worker.repository.numbers import whole
from shared.errors import ModelRefused

NAMES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
"""sentence_NAME_config.json: the first that holds anything counts, as in sentence-transformers."""
KEYS = {"transformer_task", "processing_kwargs", "modality_config", "module_output_name", "unpad_inputs", "cache_dir"}
KEYS |= {"query_length", "document_length", "query_expansion", "max_seq_length", "do_lower_case"}
KEYS |= {"model_args", "model_kwargs", "tokenizer_args", "config_args", "config_kwargs"}
KEYS |= {"processor_kwargs", "tokenizer_name_or_path"}
"""Keys that sentence-transformers' Transformer takes; it fails on any other."""
OUTPUTS = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "fill-mask": ("logits", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
    "text-generation": ("logits", "causal_logits"),
}
"""By task: which output of the model is read, and how modules after it know it."""
LOADING = {"attn_implementation", "cache_dir", "device_map", "dtype", "local_files_only", "low_cpu_mem_usage"}
LOADING |= {"revision", "token", "torch_dtype", "trust_remote_code", "use_fast", "add_pooling_layer", "use_safetensors"}
"""Arguments of from_pretrained that change no row: how weights come here is the worker's own affair."""
PADDING = {"padding", "padding_side", "pad_to_multiple_of", "return_tensors", "truncation"}
"""Arguments of a tokenizer that matter to padded batches only."""
LATE = ("query_length", "document_length", "query_expansion")
"""Keys of late interaction, which sentence-transformers 6 keeps here."""
ENDLESS = 10_000_000
"""Tokenizers write 1e30 for "no limit"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSettings:
    """`task`: which transformers class is meant. `config`: overrides of config.json.

    `chat`: texts go through a chat template, with `structured` contents and `chat_options` for it. `late`: what is said
    of late interaction, null included, in the file `named`; `call_limit` is a max_length that goes over it.
    `truncation_side` goes over tokenizer_config.json, as sentence-transformers has it.
    """

    named: str = ""
    late: dict[str, Any] = field(default_factory=dict)
    call_limit: int | None = None
    padding_side: str | None = None
    truncation_side: str | None = None
    max_tokens: int | None = None
    lowercase: bool = False
    task: str = "feature-extraction"
    config: dict[str, Any] = field(default_factory=dict)
    chat: bool = False
    structured: bool = False
    chat_options: dict[str, Any] = field(default_factory=dict)


def read(folder: Path) -> TextSettings:
    """What the files of a Transformer module say of texts. Raises ModelRefused, naming file and key."""
    file, settings = _first(folder)
    named = str(file)
    _check_keys(named, settings)
    processing = settings.get("processing_kwargs") or {}
    calls = {**(processing.get("common") or {}), **(processing.get("text") or {})}
    _check(named, "processing_kwargs", calls, PADDING | {"max_length"})
    reading = _arguments(settings, "tokenizer_args", "processor_kwargs")
    _check(named, "tokenizer_args", reading, LOADING | PADDING | {"model_max_length", "truncation_side"})
    _check(named, "model_args", _arguments(settings, "model_args", "model_kwargs"), LOADING)
    config = _arguments(settings, "config_args", "config_kwargs")
    task = str(settings.get("transformer_task", "feature-extraction"))
    _check_outputs(named, settings, task)
    message = (settings.get("modality_config") or {}).get("message")
    options = {key: value for key, value in (processing.get("chat_template") or {}).items() if key != "restore_suffix"}
    return TextSettings(
        named=named,
        late={key: settings[key] for key in LATE if key in settings},
        call_limit=_limit(calls.get("max_length"), f"{named}: max_length"),
        padding_side=calls.get("padding_side") or reading.get("padding_side"),
        truncation_side=reading.get("truncation_side"),
        max_tokens=_first_limit(folder, named, settings, calls, reading),
        lowercase=bool(settings.get("do_lower_case")),
        task=task,
        config={key: value for key, value in config.items() if key not in LOADING},
        chat=message is not None,
        structured=(message or {}).get("format") == "structured",
        chat_options=options,
    )


def of_tokenizer(folder: Path) -> TextSettings:
    """What is said of texts where there is no modules.json: the tokenizer's limit alone. Raises ModelRefused."""
    return TextSettings(max_tokens=_first_limit(folder, "", {}, {}, {}))


def unread(folder: Path) -> list[str]:
    """Files and folders of modules that count only beside a modules.json, as in sentence-transformers."""
    names = (*(f"sentence_{name}_config.json" for name in NAMES), "config_sentence_transformers.json")
    modules = sorted(file.parent.name for file in folder.glob("[0-9]*_*/config.json"))
    return [*(name for name in names if (folder / name).is_file()), *modules]


def _first(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    for file in (folder / f"sentence_{name}_config.json" for name in NAMES):
        settings = read_object(file, missing={})
        if settings:
            return file, settings
    return None, {}


def _first_limit(
    folder: Path, named: str, settings: dict[str, Any], calls: dict[str, Any], reading: dict[str, Any]
) -> int | None:
    """Tokens of a text, from the place that goes over all others: arguments of a call, arguments of the tokenizer, the
    module's own key, the tokenizer's file."""
    file = folder / "tokenizer_config.json"
    for said, where in (
        (calls.get("max_length"), f"{named}: max_length"),
        (reading.get("model_max_length"), f"{named}: model_max_length"),
        (settings.get("max_seq_length"), f"{named}: max_seq_length"),
        (read_object(file, missing={}).get("model_max_length"), f"{file}: model_max_length"),
    ):
        if said is not None:
            return _limit(said, where)
    return None


def _limit(said: Any, where: str) -> int | None:
    """None for "no limit", which tokenizers write as 1e30: a fraction, in some."""
    if said is None or (isinstance(said, int | float) and not isinstance(said, bool) and said >= ENDLESS):
        return None
    return whole(said, where)


def _check_keys(file: str, settings: dict[str, Any]) -> None:
    unknown = sorted(set(settings) - KEYS)
    if unknown:
        raise ModelRefused(f"{file} has {unknown[0]}, which sentence-transformers does not take")
    if settings.get("tokenizer_name_or_path") is not None:
        raise ModelRefused(f"{file}: tokenizer_name_or_path names a tokenizer elsewhere, which is not supported")


def _check_outputs(file: str, settings: dict[str, Any], task: str) -> None:
    """Texts go through the model's forward, and what it always gives is what modules read."""
    modalities, usual = settings.get("modality_config"), OUTPUTS.get(task)
    if modalities is None or usual is None:
        return
    for name in ("text", "message"):
        asked = modalities.get(name)
        if asked is not None and (asked.get("method"), asked.get("method_output_name")) != ("forward", usual[0]):
            raise ModelRefused(f"{file}: modality_config: {name} must take {usual[0]} of forward for {task}")
    if settings.get("module_output_name") != usual[1]:
        raise ModelRefused(f"{file}: modality_config needs the module_output_name {usual[1]} for {task}")


def _arguments(settings: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Arguments under an old or a new key; the old one goes over the new."""
    return settings.get(old, settings.get(new)) or {}


def _check(file: str, key: str, given: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise ModelRefused(f"{file}: {key} has {unknown[0]}, which is not supported")
