"""What a run's network is told beside x_t and t."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from iddpm.data.loader import Batch
from iddpm.data.store import label_of
from iddpm.diffusion.denoiser import Cond
from iddpm.experiment.config import DataConfig
from iddpm.runtime.errors import ConfigError, DataError

__all__ = ["conditioning", "low_resolution", "null_label", "sample_labels"]


def conditioning(data: DataConfig, batch: Batch, x0: Float[Tensor, "b c h w"]) -> Cond:
    """The label and the low-resolution picture of each example, where the network takes them."""
    return Cond(
        label=batch.labels if data.classes is not None else None,
        low_res=low_resolution(x0, data.low_res) if data.low_res else None,
    )


def low_resolution(x0: Float[Tensor, "b c h w"], size: int) -> Float[Tensor, "b c s s"]:
    """The picture that an upsampler is given in training: box-averaged, as in the authors' implementation."""
    return F.interpolate(x0, (size, size), mode="area")


def null_label(data: DataConfig) -> int:
    """The row of the label table that means "no label": the last, whatever the number of classes.

    Raises:
        ConfigError: The run has no classes.
    """
    if data.classes is None:
        raise ConfigError(
            "the run was trained without classes, so there is no label to leave out", "leave guidance out"
        )
    return data.classes


def sample_labels(data: DataConfig, num: int, asked: str | None) -> Int[Tensor, "n"] | None:
    """The labels of `num` samples: the one asked for, by name or number, or all classes in turn.

    Raises:
        ConfigError: There is no such class, or the run has none.
    """
    if data.classes is None:
        if asked is not None:
            raise ConfigError(f"--label {asked}: the run was trained without classes", "leave --label out")
        return None
    if asked is None:
        return torch.arange(num) % data.classes
    names = data.class_names or tuple(str(number) for number in range(data.classes))
    try:
        return torch.full((num,), label_of(names, asked))
    except DataError as error:
        raise ConfigError(f"--label {asked}: the run has no such class", error.fix) from None
