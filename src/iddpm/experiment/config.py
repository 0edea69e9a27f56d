"""RunConfig: everything that decides what a run computes, as a tree of specs that the rooms below own."""

from dataclasses import dataclass, field

from iddpm.data.crop import CentreCrop, Crop
from iddpm.diffusion.objective import Hybrid, Objective, Simple
from iddpm.diffusion.prediction import Target, Variance
from iddpm.diffusion.schedule import Cosine, Schedule, TimeScale
from iddpm.diffusion.timesteps import TimestepSampling, Uniform
from iddpm.networks.unet import UNetConfig
from iddpm.runtime.errors import ConfigError
from iddpm.training.settings import Adam, Optimizer, TrainConfig

__all__ = ["DataConfig", "DiffusionConfig", "RunConfig"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is learned."""

    source: str
    """A store, or whatever `iddpm prepare` takes: a folder or file of pictures, or the name of a set."""
    size: int
    """Side of the pictures, in pixels."""
    channels: int = 3
    """1 (grey) or 3 (RGB)."""
    labels: str = "auto"
    """Where labels come from, as for `iddpm prepare`; a store has its own."""
    background: str = "white"
    """Colour behind transparent pixels, by name or as #rrggbb; a store has its own."""
    crop: Crop = field(default_factory=CentreCrop)
    """What is taken of a picture."""
    classes: int | None = None
    """Number of classes the network is told; None: not told. Training takes it from the store."""
    class_names: tuple[str, ...] = ()
    """Their names, by label. Training takes them from the store."""
    content_hash: str | None = None
    """Identity of the store's pictures and labels. Training takes it from the store."""
    low_res: int | None = None
    """Side of the low-resolution picture that an upsampler is given; None: not an upsampler."""
    flip: bool = False
    """Mirror pictures left to right at random while training."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.channels not in (1, 3):
            raise ConfigError(
                f"data.size is {self.size}, data.channels {self.channels}; allowed: a size of 1 or more, 1 or 3 channels",
                "set --data.size and --data.channels",
            )
        if self.low_res is not None and not 1 <= self.low_res < self.size:
            raise ConfigError(f"data.low-res is {self.low_res}; allowed: 1 to {self.size - 1}", "set --data.low-res")
        if self.class_names and len(self.class_names) != self.classes:
            raise ConfigError(f"{self.classes} classes with {len(self.class_names)} names", "name every class once")


@dataclass(frozen=True, kw_only=True)
class DiffusionConfig:
    """The forward process and what the network says of its reverse."""

    schedule: Schedule = field(default_factory=lambda: Cosine(timesteps=4000))
    time_scale: TimeScale = "thousand"
    """What the network is told at index i: i * 1000/T ("thousand") or i ("index")."""
    target: Target = "eps"
    """What the network predicts: eps, x0 or v."""
    variance: Variance = "learned_range"
    """Reverse variance: learned_range [ND21 Eq. 15], fixed_small (beta_tilde) or fixed_large (beta)."""
    label_drop: float = 0.0
    """Share of training examples whose label is hidden, so that guidance can be used [HS22]; 0 builds no null label."""

    def __post_init__(self) -> None:
        if not 0 <= self.label_drop < 1:
            raise ConfigError(
                f"diffusion.label-drop is {self.label_drop}; allowed: 0 to below 1",
                "set --diffusion.label-drop",
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run. What may change on resume is named in `iddpm.experiment.identity`."""

    recipe: str
    init: str | None = None
    """Whose weights it starts from: a run directory (its averaged weights), a checkpoint folder or a file of weights; None:
    initial ones."""
    data: DataConfig
    train: TrainConfig
    diffusion: DiffusionConfig = field(default_factory=DiffusionConfig)
    objective: Objective = field(default_factory=Hybrid)
    timestep_sampling: TimestepSampling = field(default_factory=Uniform)
    net: UNetConfig = field(default_factory=UNetConfig)
    optimizer: Optimizer = field(default_factory=Adam)

    def __post_init__(self) -> None:
        if isinstance(self.objective, Hybrid) and self.diffusion.variance != "learned_range":
            raise ConfigError(
                f"the hybrid objective learns the variance; diffusion.variance is {self.diffusion.variance}",
                "take --objective simple, or --diffusion.variance learned_range",
            )
        if isinstance(self.objective, Simple) and self.diffusion.variance == "learned_range":
            raise ConfigError(
                "the simple objective leaves a learned variance untrained",
                "take --diffusion.variance fixed_large or fixed_small, or --objective hybrid",
            )
        if self.train.preview_every is not None and self.data.low_res is not None:
            raise ConfigError(
                "an upsampler has no previews: it needs pictures to enlarge", "leave train.preview-every out"
            )
        if self.diffusion.label_drop > 0 and self.data.classes is None:
            raise ConfigError(
                f"diffusion.label-drop is {self.diffusion.label_drop}, but the run has no classes",
                "a run without classes needs --diffusion.label-drop 0",
            )
