"""Checkpoints: a folder of safetensors and JSON files with a manifest of sizes and hashes.

A checkpoint is written aside and renamed, so one under its own name is whole unless the disk damaged it later; the
manifest finds that out.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from iddpm.artifacts.tensors import bare_names, write_tensors
from iddpm.runtime.channel import ALONE, Channel
from iddpm.runtime.errors import RunError
from iddpm.runtime.files import folder_aside, publish_folder, reported, sha256_of, sync_file, to_json

__all__ = [
    "SCHEMA",
    "Checkpoint",
    "check_checkpoint",
    "checkpoint_name",
    "find_checkpoint",
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
    """A checkpoint on the disk. Tensor groups are "model", "optimizer", "ema-RATE" for each rate and "task".

    `step` is the number of training steps done.
    """

    path: Path
    step: int

    @property
    def is_named_by_us(self) -> bool:
        """Whether the folder has the name that `save_checkpoint` gives; another name is the user's doing."""
        return self.path.name == checkpoint_name(self.step)


def checkpoint_name(step: int) -> str:
    """The folder's name for a number of training steps done."""
    return f"{step:09d}"


def save_checkpoint(
    folder: Path,
    step: int,
    groups: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    config: Mapping[str, Any],
    line: Channel = ALONE,
) -> Checkpoint:
    """Write RUN/checkpoints/<step>: each group of tensors in a file, everything else in JSON.

    Several processes write one checkpoint together, into a folder that all of them see.

    Args:
        folder: RUN/checkpoints.
        step: Training steps done.
        groups: Tensors by group and name; of several processes: the groups that this one writes.
        state: What is not a tensor; must be JSON. The first process's counts.
        config: The run's config, stored in the metadata of each tensor file.
        line: To the other processes that write.

    Raises:
        OutputError: The place cannot be written.
    """
    path = Path(folder) / checkpoint_name(step)
    metadata = {"config": json.dumps(config), "step": str(step), "format": "pt"}
    aside = line.first(lambda: folder_aside(path))
    try:
        written = line.together(lambda: _write_groups(aside, path, groups, metadata))
        files = {name: entry for part in line.gather(written) for name, entry in part.items()}
        line.first(lambda: _publish(aside, path, step, files, state))
    except BaseException:
        if line.rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
        raise
    return Checkpoint(path, step)


def _write_groups(
    aside: Path, path: Path, groups: Mapping[str, Mapping[str, Tensor]], metadata: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Sizes and hashes of the files that were written."""
    files: dict[str, dict[str, Any]] = {}
    with reported(path):
        for group, tensors in groups.items():
            name = f"{group}.safetensors"
            size, digest = write_tensors(aside / name, tensors, metadata)
            sync_file(aside / name)  # from here: another machine cannot flush what this one has in memory
            files[name] = {"bytes": size, "sha256": digest}
    return files


def _publish(aside: Path, path: Path, step: int, files: dict[str, dict[str, Any]], state: Mapping[str, Any]) -> None:
    content = to_json(dict(state)).encode()
    files = files | {_STATE: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
    manifest = {"schema": SCHEMA, "step": step, "files": dict(sorted(files.items()))}
    with reported(path):
        (aside / _STATE).write_bytes(content)
        (aside / _MANIFEST).write_text(to_json(manifest), encoding="utf-8")
        publish_folder(aside, path)


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """The checkpoints in a folder, oldest first, unchecked; of those of one step, that of our own name last."""
    if not Path(folder).is_dir():
        return []
    found = [checkpoint for path in Path(folder).iterdir() if (checkpoint := find_checkpoint(path)) is not None]
    return sorted(found, key=lambda checkpoint: (checkpoint.step, checkpoint.is_named_by_us, checkpoint.path.name))


def find_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint that a folder is, unchecked, or None. A folder under another name is one by its manifest."""
    if path.name.startswith(".") or not path.is_dir():
        return None
    if _NAME.fullmatch(path.name):
        return Checkpoint(path, int(path.name))
    try:
        step = _read_json(path / _MANIFEST).get("step")
    except RunError:
        return None
    return Checkpoint(path, step) if isinstance(step, int) and step >= 0 else None


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
    if manifest.get("step") != checkpoint.step:
        raise RunError(
            f"{checkpoint.path} is of step {manifest.get('step')}, not of step {checkpoint.step} as its name says",
            "give it back its name",
        )
    try:
        entries = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except (KeyError, TypeError, AttributeError):
        raise RunError(f"{checkpoint.path / _MANIFEST} is damaged", "remove that checkpoint folder") from None
    for name, (size, digest) in entries.items():
        _check_file(checkpoint.path / name, size, digest)


def _check_file(file: Path, size: int, digest: str) -> None:
    try:
        found = file.stat().st_size if file.is_file() else None
        damage = None
        if found != size:
            damage = f"{'missing' if found is None else f'{found:,} bytes'}, {size:,} bytes were written"
        elif sha256_of(file) != digest:
            damage = "its content is not what was written"
    except OSError as error:  # a disk that cannot read it
        damage = error.strerror or str(error)
    if damage is not None:
        raise RunError(f"{file} is damaged: {damage}", "remove that checkpoint folder")


def load_tensors(checkpoint: Checkpoint, group: str) -> dict[str, Tensor]:
    """One group of tensors, on the CPU, under the module's own names.

    Raises:
        RunError: There is no such group, or its file is damaged.
    """
    file = checkpoint.path / f"{group}.safetensors"
    if not file.is_file():
        groups = sorted(other.stem for other in checkpoint.path.glob("*.safetensors"))
        raise RunError(f"{checkpoint.path} holds no {group!r} weights", f"it holds: {', '.join(groups)}")
    try:
        tensors = load_file(file, device="cpu")
    except (SafetensorError, OSError) as error:
        raise RunError(f"{file} is damaged: {error}", "remove that checkpoint folder") from error
    return bare_names(tensors, str(file))


def load_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """What is not a tensor."""
    return _read_json(checkpoint.path / _STATE)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read: {error}", "remove that checkpoint folder") from error
    if not isinstance(value, dict):
        raise RunError(f"{file} cannot be read: it holds no JSON object", "remove that checkpoint folder")
    return value
