"""A new run from another's weights (`--init`): what fits is copied, what does not is named."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from iddpm.artifacts.weights import Weights, read_weights
from iddpm.experiment.config import RunConfig
from iddpm.experiment.identity import config_to_json, differences
from iddpm.runtime.errors import ConfigError, RunError

__all__ = ["InitialWeights", "describe", "load_initial"]

LABEL_TABLE = "label_emb.weight"
_SHOWN = 6
_MEANING = ("target", "variance", "schedule", "time_scale")


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """What a network was given to start from.

    Attributes:
        origin: The file.
        step: Training steps that the weights have seen; None: not known.
        loaded: Tensors of the network that were filled.
        not_loaded: Those that keep their own initial values, and why.
        unused: Names of the file that the network has no place for.
        labels: How the label table was carried over; None: there is none, or it does not come from the file.
        differs: What the network was told or asked for otherwise than here, which training has to unlearn.
    """

    origin: str
    step: int | None
    loaded: int
    not_loaded: tuple[str, ...]
    unused: tuple[str, ...]
    labels: str | None
    differs: tuple[str, ...]


def load_initial(net: nn.Module, config: RunConfig, source: str) -> InitialWeights:
    """Copy the averaged weights of a run or a file into a new network, in place.

    A tensor is taken where name and shape are the network's. The label table may have another number of rows: rows go by
    class name where both runs know names, else by number; a class without a row starts from the null label's, or else
    from the mean of all.

    Args:
        net: The network, with its own initial weights.
        config: Its config, with the classes of its store.
        source: What `iddpm.artifacts.weights.read_weights` takes.

    Raises:
        RunError: The source cannot be read, or holds numbers that are not finite.
        ConfigError: Less than half of the network's parameters are in it; the network is untouched then.
    """
    weights = read_weights(Path(source))
    there = net.state_dict()
    new, labels = dict(weights.tensors), None
    _check_numbers({name: tensor for name, tensor in new.items() if name in there}, weights.origin)
    if LABEL_TABLE in there and LABEL_TABLE in new:
        table, labels = _label_table(there[LABEL_TABLE], new[LABEL_TABLE], config, weights.config)
        new[LABEL_TABLE] = table
    fitting = [name for name, tensor in there.items() if name in new and new[name].shape == tensor.shape]
    not_loaded = tuple(_why(name, tensor, new) for name, tensor in there.items() if name not in fitting)
    _check_enough(there, fitting, not_loaded, weights)
    with torch.no_grad():
        for name in fitting:
            there[name].copy_(new[name])
    return InitialWeights(
        origin=weights.origin,
        step=weights.step,
        loaded=len(fitting),
        not_loaded=not_loaded,
        unused=tuple(name for name in new if name not in there),
        labels=labels if LABEL_TABLE in fitting else None,
        differs=_differences(weights.config, config),
    )


def _differences(old: dict[str, Any] | None, config: RunConfig) -> tuple[str, ...]:
    """Where the file's run is known: differences in what the network's input and output mean."""
    here, there = config_to_json(config)["diffusion"], (old or {}).get("diffusion")
    if not isinstance(there, dict):
        return ()
    found = list(differences({name: there.get(name) for name in _MEANING}, {name: here[name] for name in _MEANING}))
    # Of two kinds of schedule their own settings say nothing more.
    kinds = [path.rpartition(".")[0] for path, _, _ in found if path.endswith(".kind")]
    return tuple(
        f"diffusion.{path}: {a} there, {b} here"
        for path, a, b in found
        if path.endswith(".kind") or path.rpartition(".")[0] not in kinds
    )


def _why(name: str, tensor: Tensor, new: dict[str, Tensor]) -> str:
    if name not in new:
        return f"{name} (not in the file)"
    return f"{name} ({_shape(tensor)} here, {_shape(new[name])} in the file)"


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"


def _check_enough(there: dict[str, Tensor], fitting: list[str], not_loaded: tuple[str, ...], weights: Weights) -> None:
    total = sum(tensor.numel() for tensor in there.values())
    found = sum(there[name].numel() for name in fitting)
    if 2 * found < total:
        raise ConfigError(
            f"--init: {weights.origin} has {found / total:.0%} of this network's parameters, at least half are needed; "
            f"without: {_listed(not_loaded, 3)}",
            f"give weights of a network of this kind and width; it holds, for example: {_listed(tuple(weights.tensors), 3)}",
        )


def _check_numbers(tensors: dict[str, Tensor], origin: str) -> None:
    whole = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
    if whole:
        raise RunError(
            f"--init: {origin} holds whole numbers where weights have fractions, in {_listed(tuple(whole), 3)}",
            "give weights in float32, bfloat16 or float16",
        )
    bad = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if bad:
        raise RunError(
            f"--init: {origin} holds numbers that are not finite, in {_listed(tuple(bad), 3)}",
            "give weights from before that happened",
        )


def _label_table(
    here: Tensor, old: Tensor, config: RunConfig, old_config: dict[str, Any] | None
) -> tuple[Tensor, str | None]:
    """The old table brought to the new classes, and how in words; the old one as it is where its width differs."""
    if old.ndim != 2 or old.shape[1:] != here.shape[1:]:
        return old, None
    classes, names = len(here) - (config.diffusion.label_drop > 0), config.data.class_names
    old_classes, old_names = _old_classes(old, len(here), classes, old_config)
    by_name = len(names) == classes and len(old_names) == old_classes
    ancestors = _ancestors(classes, old_classes, names, old_names, by_name)
    null = old[old_classes] if old_classes < len(old) else None
    fallback = old[:old_classes].mean(0) if null is None else null
    rows = [fallback if row is None else old[row] for row in ancestors]
    if classes < len(here):
        rows.append(fallback)
    return torch.stack(rows), _in_words(ancestors, names, by_name, null is not None, classes < len(here))


def _old_classes(
    old: Tensor, rows_here: int, classes: int, old_config: dict[str, Any] | None
) -> tuple[int, tuple[str, ...]]:
    """How many rows of the old table are classes, and their names; a row more is the null label's."""
    data = (old_config or {}).get("data", {})
    known = data.get("classes")
    if isinstance(known, int) and known in (len(old), len(old) - 1):
        return known, tuple(data.get("class_names", ()))
    # Nothing is known of the old run: a table of this one's size is taken to be of its kind, any other to have no null label.
    return (classes if len(old) == rows_here else len(old)), ()


def _ancestors(
    classes: int, old_classes: int, names: tuple[str, ...], old_names: tuple[str, ...], by_name: bool
) -> list[int | None]:
    """The old row of each class."""
    if by_name:
        row_of = {name: row for row, name in enumerate(old_names)}
        return [row_of.get(name) for name in names]
    return [row if row < old_classes else None for row in range(classes)]


def _in_words(
    ancestors: list[int | None], names: tuple[str, ...], by_name: bool, from_null: bool, has_null: bool
) -> str:
    begin = "the null label's row" if from_null else "the mean of the old rows"
    without = tuple(names[row] if names else str(row) for row, ancestor in enumerate(ancestors) if ancestor is None)
    words = (
        f"label table: {len(ancestors) - len(without)} of {len(ancestors)} classes by {'name' if by_name else 'number'}"
    )
    if without:
        words += f"; new ones start from {begin}: {_listed(without, _SHOWN)}"
    if has_null:
        words += "; the null label too" if from_null else f"; the null label starts from {begin}"
    return words


def describe(initial: InitialWeights) -> list[str]:
    """What was loaded, in lines for people."""
    step = f", step {initial.step}" if initial.step is not None else ""
    lines = [f"initial weights: {initial.loaded} tensors from {initial.origin}{step}"]
    if initial.labels is not None:
        lines.append(initial.labels)
    if initial.differs:
        lines.append(f"warning: these weights were trained otherwise: {_listed(initial.differs, _SHOWN)}")
    if initial.not_loaded:
        lines.append(f"not loaded, left as initialised: {_listed(initial.not_loaded, _SHOWN)}")
    if initial.unused:
        lines.append(f"in the file, and not used: {_listed(initial.unused, _SHOWN)}")
    return lines


def _listed(names: tuple[str, ...], shown: int) -> str:
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")
