"""How a transformers folder reads its texts: sentence_bert_config.json and its kin, and tokenizer_config.json.

Keys that would change token ids or weights, and that are not understood here, refuse the model.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_worker.repository.files import read_object
from shared.errors import ModelRefused

NAMES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
"""sentence_NAME_config.json: the first that exists counts, as in sentence-transformers."""
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
    """Raises ModelRefused, naming file and key."""
    file = next((each for each in (folder / f"sentence_{name}_config.json" for name in NAMES) if each.is_file()), None)
    settings = read_object(file) if file else {}
    named = str(file)
    processing = settings.get("processing_kwargs") or {}
    calls = {**(processing.get("common") or {}), **(processing.get("text") or {})}
    _check(named, "processing_kwargs", calls, PADDING | {"max_length"})
    reading = _arguments(settings, "tokenizer_args", "processor_kwargs")
    _check(named, "tokenizer_args", reading, LOADING | PADDING | {"model_max_length", "truncation_side"})
    _check(named, "model_args", _arguments(settings, "model_args", "model_kwargs"), LOADING)
    config = _arguments(settings, "config_args", "config_kwargs")
    limit = settings.get("max_seq_length") or calls.get("max_length") or reading.get("model_max_length")
    if limit is None:
        limit = read_object(folder / "tokenizer_config.json", missing={}).get("model_max_length")
    message = (settings.get("modality_config") or {}).get("message")
    options = {key: value for key, value in (processing.get("chat_template") or {}).items() if key != "restore_suffix"}
    return TextSettings(
        named=named,
        late={key: settings[key] for key in LATE if key in settings},
        call_limit=calls.get("max_length"),
        padding_side=calls.get("padding_side") or reading.get("padding_side"),
        truncation_side=reading.get("truncation_side"),
        max_tokens=int(limit) if isinstance(limit, int | float) and 0 < limit < ENDLESS else None,
        lowercase=bool(settings.get("do_lower_case")),
        task=str(settings.get("transformer_task", "feature-extraction")),
        config={key: value for key, value in config.items() if key not in LOADING},
        chat=message is not None,
        structured=(message or {}).get("format") == "structured",
        chat_options=options,
    )


def _arguments(settings: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Arguments under an old or a new key."""
    return {key: value for name in keys for key, value in (settings.get(name) or {}).items()}


def _check(file: str, key: str, given: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise ModelRefused(f"{file}: {key} has {unknown[0]}, which is not supported")
