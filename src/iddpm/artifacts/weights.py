"""Weights from wherever they lie: a run, a checkpoint, a safetensors file, a torch file."""

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from iddpm.artifacts.checkpoint import Checkpoint, check_checkpoint, find_checkpoint, list_checkpoints
from iddpm.artifacts.run_dir import newest_whole, open_run_dir
from iddpm.artifacts.tensors import bare_names
from iddpm.runtime.errors import RunError

__all__ = ["WEIGHT_PLACES", "Weights", "read_weights"]

_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_CODE = re.compile(r"(?:GLOBAL|reduce for unrecognized function) (\S+)")
WEIGHT_PLACES = f"a run directory, a checkpoint folder, a .safetensors file, or a torch file ({', '.join(_TORCH)})"
"""Where weights are looked for, in words."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights on the CPU, under the module's own names; numbers with a fraction are float32 whatever the file holds.

    Attributes:
        origin: The file they were read from, and the entry in it.
        step: Training steps they have seen; None: the file does not say.
        config: The config of their run; None: the file does not say.
    """

    tensors: dict[str, Tensor]
    origin: str
    step: int | None
    config: dict[str, Any] | None


def read_weights(path: Path, weights: str = "ema") -> Weights:
    """Read weights.

    Args:
        path: A run directory (its newest whole checkpoint), a folder of checkpoints, a checkpoint folder, a .safetensors
            file, or a torch file with a state dict, which may stand under "state_dict", "model" or "ema".
        weights: "ema" (the run's first rate), "ema-RATE", "power-WIDTH" or "model"; a single file holds one kind only.

    Raises:
        RunError: There is nothing there, or it holds no weights, or it is damaged, or it is code rather than data.
    """
    path = Path(path)
    if not path.exists():
        raise RunError(f"{path} does not exist", f"give {WEIGHT_PLACES}")
    if path.is_dir():
        checkpoint = _checkpoint_of(path)
        return _from_safetensors(_group_file(checkpoint, weights))
    if path.suffix == ".safetensors":
        return _from_safetensors(path)
    if path.suffix in _TORCH:
        return _from_torch(path, weights)
    raise RunError(f"{path} is no file of weights that is known by its name", f"give {WEIGHT_PLACES}")


def _checkpoint_of(path: Path) -> Checkpoint:
    """The checkpoint that a folder is or holds, whole."""
    if (path / "config.json").is_file():
        return open_run_dir(path).checkpoint_at(None)[0]
    if (checkpoint := find_checkpoint(path.resolve())) is not None:
        check_checkpoint(checkpoint)
        return checkpoint
    if not list_checkpoints(path):
        raise RunError(f"{path} holds no weights", f"give {WEIGHT_PLACES}")
    newest, complaints = newest_whole(path)
    if newest is None:
        raise RunError(f"no checkpoint in {path} is whole: {complaints[0]}", "restore one from a copy")
    return newest


def _group_file(checkpoint: Checkpoint, weights: str) -> Path:
    files = {file.stem: file for file in sorted(checkpoint.path.glob("*.safetensors"))}
    kinds = [name for name in files if name not in ("optimizer", "task")]
    averages = [name for name in kinds if name.startswith("ema-")]
    if weights == "ema" and len(averages) > 1:
        config = _metadata(files[averages[0]])[1]
        rates = config["train"]["ema"] if config else []
        averages = [name for name in averages if rates and name == f"ema-{rates[0]:g}"]
    group = averages[0] if weights == "ema" and averages else weights
    if group not in kinds:
        raise RunError(f"{checkpoint.path} holds no {weights!r} weights", f"it holds: {', '.join(kinds) or 'none'}")
    return files[group]


def _from_safetensors(file: Path) -> Weights:
    step, config = _metadata(file)
    try:
        with safe_open(file, framework="pt", device="cpu") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  # it is no mapping
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from error
    return Weights(tensors=_plain(tensors, str(file)), origin=str(file), step=step, config=config)


def _metadata(file: Path) -> tuple[int | None, dict[str, Any] | None]:
    """Step and config, where the file was written by us."""
    try:
        with safe_open(file, framework="pt", device="cpu") as stored:
            metadata = stored.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from error
    try:
        return int(metadata["step"]), json.loads(metadata["config"])
    except (KeyError, ValueError):
        return None, None


def _from_torch(file: Path, weights: str) -> Weights:
    content = _loaded(file)
    tensors, entry = _state_dict_in(content, weights)
    if tensors is None:
        held = ", ".join(map(str, list(content)[:6])) if isinstance(content, Mapping) else type(content).__name__
        raise RunError(
            f"{file} holds no state dict; it holds: {held or 'nothing'}",
            'save names and tensors, as torch.save(net.state_dict(), FILE) does, or that under "state_dict"',
        )
    origin = f"{file}/{entry}" if entry else str(file)
    step = content.get("step")
    return Weights(
        tensors=_plain(tensors, origin),
        origin=origin,
        step=step if isinstance(step, int) else None,
        config=None,
    )


def _loaded(file: Path) -> Any:
    """What a torch file holds, mapped where its format allows, so that it is not in memory twice."""
    try:
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):
                raise
            return torch.load(file, map_location="cpu", weights_only=True, mmap=False)
    except pickle.UnpicklingError as error:
        code = _CODE.search(str(error))
        if code is None:
            raise _damaged(file, error.__context__ or error) from error
        raise RunError(
            f"{file} holds pickled objects ({code[1]}), which could run any code when loaded: refused",
            "where you trust it, load it yourself and save its state_dict() alone",
        ) from error
    except Exception as error:  # whatever a damaged pickle makes of itself
        raise _damaged(file, error) from error


def _state_dict_in(content: Any, weights: str) -> tuple[Mapping[str, Tensor] | None, str]:
    """The state dict, and the entry it stands under ("" where it is the content itself)."""
    if _is_state_dict(content):
        return content, ""
    entries = ("model", "state_dict", "ema") if weights == "model" else ("ema", "state_dict", "model")
    for entry in entries if isinstance(content, Mapping) else ():
        if _is_state_dict(content.get(entry)):
            return content[entry], entry
    return None, ""


def _is_state_dict(value: Any) -> bool:
    """Whether it is names with tensors, and at most a few words beside them (a step, a version)."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return False
    tensors = sum(isinstance(tensor, Tensor) for tensor in value.values())
    beside = sum(isinstance(tensor, str | int | float | None) for tensor in value.values())
    return tensors > beside and tensors + beside == len(value)


def _plain(tensors: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    """Under bare names, and never in half precision: what is trained on must be float32."""
    bare = bare_names({name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}, origin)
    return {name: tensor.detach().float() if tensor.is_floating_point() else tensor for name, tensor in bare.items()}


def _damaged(file: Path, error: BaseException) -> RunError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return RunError(f"{file} is damaged, or not what its name says: {lines[0][:200]}", "restore it from a copy")
