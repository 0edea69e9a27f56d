"""A config as JSON and back, and which differences between two configs a resumed run may have."""

from collections.abc import Iterator
from typing import Any

from cattrs import transform_error
from cattrs.errors import BaseValidationError
from cattrs.preconf.json import make_converter
from cattrs.strategies import configure_tagged_union
from cattrs.v import format_exception

from iddpm.data.crop import Crop
from iddpm.diffusion.objective import Objective
from iddpm.diffusion.schedule import Schedule
from iddpm.diffusion.timesteps import TimestepSampling
from iddpm.experiment.config import RunConfig
from iddpm.runtime.errors import ConfigError, RunError
from iddpm.training.settings import Optimizer, RateSchedule

__all__ = ["MAY_CHANGE", "check_same_run", "config_from_json", "config_to_json", "differences"]

MAY_CHANGE = frozenset({"data.source", "data.labels", "data.background"}) | frozenset(
    f"train.{name}"
    for name in (
        "steps",
        "micro_batch_size",
        "activation_checkpointing",
        "precision",
        "channels_last",
        "parallel",
        "log_every",
        "checkpoint_every",
        "keep_checkpoints",
        "keep_every",
        "keep_best",
        "snapshot_every",
        "preview_every",
        "evaluate_every",
        "evaluate_num",
        "evaluate_steps",
        "gradient_noise_scale",
        "faults.patience",
        "faults.rollbacks",
        "faults.lr_factor",
        "faults.hang_seconds",
    )
)
"""Paths that may differ on resume: how far, in what layout and arithmetic, how often it reports and saves, what it does about
faults, and where the data lies (what it is, data.content_hash, may not)."""

_CONVERTER = make_converter(forbid_extra_keys=True)
for _union in (Crop, Schedule, Objective, TimestepSampling, Optimizer, RateSchedule):
    configure_tagged_union(_union, _CONVERTER, tag_name="kind")


def config_to_json(config: RunConfig) -> dict[str, Any]:
    """A config as plain JSON values; a variant carries its class name as "kind"."""
    return _CONVERTER.unstructure(config, RunConfig)


def config_from_json(value: dict[str, Any]) -> RunConfig:
    """The config that `config_to_json` gave.

    Raises:
        RunError: A field is unknown, missing or of another type; the message names its path.
    """
    try:
        return _CONVERTER.structure(value, RunConfig)
    except (BaseValidationError, KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"the config is not one this version reads: {'; '.join(transform_error(error, format_exception=_said))}",
            "use the version of iddpm that wrote it (provenance.json names it)",
        ) from error


def _said(error: BaseException, kind: Any) -> str:
    # A KeyError is a field that is missing, or a variant's name that is not known.
    return f"{error} is missing or not known" if isinstance(error, KeyError) else format_exception(error, kind)


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Paths at which two JSON values differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


def check_same_run(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """What changes on resume, by path.

    Raises:
        ConfigError: Something differs that makes it another run.
    """
    changed = {path: (a, b) for path, a, b in differences(config_to_json(old), config_to_json(new))}
    refused = [f"{path}: {a} -> {b}" for path, (a, b) in changed.items() if path not in MAY_CHANGE]
    if refused:
        shown = "; ".join(refused[:4]) + (f" and {len(refused) - 4} more" if len(refused) > 4 else "")
        raise ConfigError(
            f"this run directory holds another run ({shown})",
            "give the same settings to resume it, or another --out for a new run",
        )
    return changed
