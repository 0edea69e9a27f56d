"""`iddpm recipes` and `iddpm show`: what there is, and what it consists of."""

from pathlib import Path
from typing import Any

import torch

from iddpm.artifacts.run_dir import open_run_dir
from iddpm.cost.counts import Counts, counts
from iddpm.experiment.build import build_net, net_inputs
from iddpm.experiment.config import RunConfig
from iddpm.experiment.identity import config_from_json, config_to_json
from iddpm.experiment.recipes import RECIPES, recipe
from iddpm.runtime.errors import ConfigError

__all__ = ["counts_of", "list_recipes", "show"]


def counts_of(config: RunConfig) -> Counts:
    """Parameters, MACs and FLOPs of a config's network, on the meta device."""
    meta = torch.device("meta")
    inputs: dict[str, Any] = dict(net_inputs(config, 1, meta))
    return counts(build_net(config, meta), **inputs)


def list_recipes() -> list[dict[str, Any]]:
    """Each recipe's name, summary, size and amount of training."""
    rows = []
    for entry in RECIPES.values():
        config = entry.config()
        rows.append(
            {
                "name": entry.name,
                "summary": entry.summary,
                "image_size": config.data.size,
                "timesteps": config.diffusion.schedule.timesteps,
                "train_steps": config.train.steps,
                "batch_size": config.train.batch_size,
            }
        )
    return rows


def show(target: str) -> dict[str, Any]:
    """A recipe or a run directory: its config and counts, and how far a run has come.

    Raises:
        ConfigError: It is neither.
        RunError: The run directory cannot be read.
    """
    path = Path(target)
    if target in RECIPES:
        return {"recipe": target} | _facts(recipe(target).config())
    if not path.exists():
        near = _hint(target)
        raise ConfigError(f"{target!r} is neither a recipe nor a run directory nor a store", near)
    run = open_run_dir(path)
    newest, complaints = run.newest_checkpoint()
    progress = {
        "path": str(run.path),
        "step": newest.step if newest else 0,
        "damaged_checkpoints": complaints,
    }
    return progress | _facts(config_from_json(run.config)) | {"provenance": run.provenance}


def _hint(name: str) -> str:
    """What to do about a name that is no recipe."""
    try:
        recipe(name)
    except ConfigError as error:
        return error.fix or ""
    return ""


def _facts(config: RunConfig) -> dict[str, Any]:
    found = counts_of(config)
    images = config.train.steps * config.train.batch_size
    return {
        "parameters": found.parameters,
        "macs_per_image": found.macs_per_image,
        "flops_per_image": found.flops_per_image,
        "train_images": images,
        "train_flops": found.training_flops_per_image * images,
        "config": config_to_json(config),
    }
