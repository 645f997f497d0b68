"""Models of the hub: the folder that their files are downloaded to. Nothing else asks the hub."""

from collections.abc import Sequence
from pathlib import Path

from gpu_worker.repository.files import EXPORTS, counting_suffixes, first_line, pickles_beside_safetensors
from shared.errors import ModelRefused

SECONDS = 10.0
"""Longest time to connect to the hub, and to wait for its first answer; its library alone would try for minutes."""


def is_path(name: str) -> bool:
    """Whether a name can only be a path, because no hub id looks like it."""
    return name.startswith(("/", ".", "~")) or name.endswith("/") or name.count("/") > 1 or Path(name).exists()


def download(name: str, trust_remote_code: bool, revision: str) -> Path:
    """Returns the folder with the files of a hub id, at a revision; "" is the newest.

    Where the hub cannot be reached, files that were downloaded earlier serve. Raises ModelRefused.
    """
    from huggingface_hub import constants, snapshot_download

    files, unreachable = _listed(name, revision)
    try:
        # Config, modules, tokenizer and weights are all read from this folder, so all have the same revision.
        folder = snapshot_download(
            name,
            revision=revision or None,
            allow_patterns=[f"*{suffix}" for suffix in sorted(counting_suffixes(trust_remote_code))],
            ignore_patterns=not_needed(files),
            local_files_only=unreachable is not None,
        )
    except Exception as error:  # no such name, no permission; without the hub, nothing was downloaded
        which = f" of --revision = {revision!r}" if revision else ""
        if unreachable is None:
            raise ModelRefused(f"it is no directory here, and the hub says{which}: {first_line(error)}") from None
        raise ModelRefused(
            f"it is no directory here, no files{which} were downloaded earlier, and the hub ({constants.ENDPOINT}) "
            f"cannot be reached: {first_line(unreachable)}"
        ) from None
    return Path(folder)


def _listed(name: str, revision: str) -> tuple[list[Path], Exception | None]:
    """The files on the hub, none where it refuses to tell them; and why it cannot be reached, None where it can."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        information = HfApi().model_info(name, revision=revision or None, timeout=SECONDS)
    except (HfHubHTTPError, HFValidationError):  # the download says why
        return [], None
    except Exception as error:
        return [], error
    return [Path(file.rfilename) for file in information.siblings or ()], None


def not_needed(files: Sequence[Path]) -> list[str]:
    """Patterns of files on the hub that are not downloaded: exports, and pickles beside safetensors."""
    pickles = sorted(map(str, pickles_beside_safetensors(files)))
    return [*(f"{folder}/*" for folder in EXPORTS), *pickles]
