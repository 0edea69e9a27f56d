"""Checkpoints: a folder of safetensors and JSON files with a manifest of sizes and hashes.

A checkpoint is written aside and renamed, so one under its own name is whole unless the disk damaged it later; the
manifest finds that out.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from iddpm.runtime.errors import OutputError, RunError
from iddpm.runtime.files import new_folder, sha256_of, to_json

__all__ = [
    "SCHEMA",
    "Checkpoint",
    "check_checkpoint",
    "list_checkpoints",
    "load_state",
    "load_tensors",
    "save_checkpoint",
]

SCHEMA = 1
_NAME = re.compile(r"\d{9,}")
_STATE, _MANIFEST = "state.json", "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk. Tensor groups are "model", "optimizer", "ema-RATE" for each rate and "task"."""

    path: Path

    @property
    def step(self) -> int:
        """Training steps done."""
        return int(self.path.name)


def save_checkpoint(
    folder: Path,
    step: int,
    groups: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    config: Mapping[str, Any],
) -> Checkpoint:
    """Write RUN/checkpoints/<step>: each group of tensors in a file, everything else in JSON.

    Args:
        folder: RUN/checkpoints.
        step: Training steps done.
        groups: Tensors by group and name.
        state: What is not a tensor; must be JSON.
        config: The run's config, stored in the metadata of each tensor file.

    Raises:
        OutputError: The place cannot be written.
    """
    path = Path(folder) / f"{step:09d}"
    metadata = {"config": json.dumps(config), "step": str(step), "format": "pt"}
    with new_folder(path) as aside:
        for name, tensors in groups.items():
            whole = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
            _save_file(whole, aside / f"{name}.safetensors", metadata)
        (aside / _STATE).write_text(to_json(dict(state)), encoding="utf-8")
        files = {
            file.name: {"bytes": file.stat().st_size, "sha256": sha256_of(file)} for file in sorted(aside.iterdir())
        }
        (aside / _MANIFEST).write_text(to_json({"schema": SCHEMA, "step": step, "files": files}), encoding="utf-8")
    return Checkpoint(path)


def _save_file(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, file, metadata=metadata)
    except SafetensorError as error:
        raise OutputError(f"cannot write {file.parent}: {error}", "free some space, then repeat the command") from error


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """The checkpoints in a folder, oldest first, unchecked."""
    if not Path(folder).is_dir():
        return []
    found = [Checkpoint(path) for path in Path(folder).iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def check_checkpoint(checkpoint: Checkpoint) -> None:
    """Compare every file with the manifest.

    Raises:
        RunError: A file is missing, of another size, or of another content; or the format is a newer one.
    """
    manifest = _read_json(checkpoint.path / _MANIFEST)
    if manifest.get("schema") != SCHEMA:
        raise RunError(
            f"{checkpoint.path}: format {manifest.get('schema')}, this version reads {SCHEMA}",
            "use the version that wrote it",
        )
    for name, entry in manifest.get("files", {_STATE: {"bytes": None}}).items():
        file = checkpoint.path / name
        size = file.stat().st_size if file.is_file() else None
        if size != entry["bytes"]:
            found = "missing" if size is None else f"{size:,} bytes"
            raise RunError(
                f"{file} is damaged: {found}, {entry['bytes']:,} bytes were written",
                "remove that checkpoint folder",
            )
        if sha256_of(file) != entry["sha256"]:
            raise RunError(f"{file} is damaged: its content is not what was written", "remove that checkpoint folder")


def load_tensors(checkpoint: Checkpoint, group: str) -> dict[str, Tensor]:
    """One group of tensors, on the CPU.

    Raises:
        RunError: There is no such group, or its file is damaged.
    """
    file = checkpoint.path / f"{group}.safetensors"
    if not file.is_file():
        groups = sorted(other.stem for other in checkpoint.path.glob("*.safetensors"))
        raise RunError(f"{checkpoint.path} holds no {group!r} weights", f"it holds: {', '.join(groups)}")
    try:
        return load_file(file, device="cpu")
    except (SafetensorError, OSError) as error:
        raise RunError(f"{file} is damaged: {error}", "remove that checkpoint folder") from error


def load_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """What is not a tensor."""
    return _read_json(checkpoint.path / _STATE)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read: {error}", "remove that checkpoint folder") from error
