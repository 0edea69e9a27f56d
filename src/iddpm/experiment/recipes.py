"""The runs that have a name: the paper's, the demo, and a tiny one for tests. A recipe is a function of nothing.

Settings of the published checkpoints: `published_checkpoints.json` of the authors' release; widths: [ND21 Section 6].
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace

from iddpm.diffusion.objective import Hybrid, Vlb
from iddpm.diffusion.schedule import Cosine, Linear
from iddpm.diffusion.timesteps import SecondMoment
from iddpm.experiment.config import DataConfig, DiffusionConfig, RunConfig
from iddpm.networks.unet import UNetConfig
from iddpm.runtime.errors import ConfigError
from iddpm.training.settings import Adam, CosineRate, TrainConfig

__all__ = ["RECIPES", "Recipe", "recipe"]

_BARE_INDEX = "index"


@dataclass(frozen=True)
class Recipe:
    """A named run: what it is in one line, and how to make its config."""

    name: str
    summary: str
    make: Callable[[str], RunConfig]

    def config(self) -> RunConfig:
        """The recipe's config."""
        return self.make(self.name)


def _imagenet64(name: str, channels: int = 128) -> RunConfig:
    return RunConfig(
        recipe=name,
        data=DataConfig(source="imagenet64", size=64),
        net=UNetConfig(channels=channels, multipliers=(1, 2, 3, 4)),
        train=TrainConfig(steps=1_500_000),
    )


def _width(channels: int) -> Callable[[str], RunConfig]:
    return lambda name: _imagenet64(name, channels)


def _as_vlb(make: Callable[[str], RunConfig]) -> Callable[[str], RunConfig]:
    return lambda name: replace(make(name), objective=Vlb(), timestep_sampling=SecondMoment())


def _imagenet64_cond(name: str) -> RunConfig:
    return RunConfig(
        recipe=name,
        data=DataConfig(source="imagenet64", size=64, classes=1000),
        diffusion=DiffusionConfig(time_scale=_BARE_INDEX),
        objective=Hybrid(bound_weight="unscaled"),
        net=UNetConfig(channels=192, multipliers=(1, 2, 3, 4)),
        train=TrainConfig(steps=250_000, batch_size=2048, lr=3e-4),
    )


def _cifar10(name: str) -> RunConfig:
    return RunConfig(
        recipe=name,
        data=DataConfig(source="cifar10", size=32),
        net=UNetConfig(channels=128, multipliers=(1, 2, 2, 2), dropout=0.3),
        train=TrainConfig(steps=500_000),
    )


def _lsun_bedroom(name: str) -> RunConfig:
    return RunConfig(
        recipe=name,
        data=DataConfig(source="lsun-bedroom", size=256),
        diffusion=DiffusionConfig(schedule=Linear(timesteps=1000), time_scale=_BARE_INDEX),
        objective=Hybrid(bound_weight="unscaled"),
        net=UNetConfig(multipliers=(1, 1, 2, 2, 4, 4), blocks=2, attention_at=(16,), heads=1, scale_shift_norm=False),
        train=TrainConfig(steps=1_200_000),
    )


def _lsun_bedroom_bs64(name: str) -> RunConfig:
    config = _lsun_bedroom(name)
    return replace(config, train=replace(config.train, steps=2_400_000, batch_size=64, lr=2e-5))


def _upsample(name: str) -> RunConfig:
    return RunConfig(
        recipe=name,
        data=DataConfig(source="imagenet256", size=256, classes=1000, low_res=64),
        diffusion=DiffusionConfig(schedule=Linear(timesteps=4000), time_scale=_BARE_INDEX),
        objective=Hybrid(bound_weight="unscaled"),
        net=UNetConfig(channels=192, multipliers=(1, 1, 2, 2, 4, 4), blocks=2),
        train=TrainConfig(steps=500_000, batch_size=256, lr=3e-4),
    )


def _demo(name: str) -> RunConfig:
    """Chosen for a few minutes on two CPU cores: see docs/decisions/0004-demo.md."""
    return RunConfig(
        recipe=name,
        data=DataConfig(source="avatars", size=32, classes=10),
        diffusion=DiffusionConfig(schedule=Cosine(timesteps=1000), target="v"),
        net=UNetConfig(channels=32, multipliers=(1, 1, 2, 4), blocks=1, attention_at=(8,), heads=4),
        optimizer=Adam(beta2=0.99),
        train=TrainConfig(
            steps=1500,
            batch_size=32,
            lr=2e-3,
            lr_schedule=CosineRate(warmup_steps=50, final=0.02),
            grad_clip=1.0,
            ema=(0.995,),
            ema_warmup=True,
            log_every=25,
            checkpoint_every=1000,
        ),
    )


def _digits(name: str) -> RunConfig:
    return RunConfig(
        recipe=name,
        data=DataConfig(source="digits", size=8, channels=1, classes=10),
        diffusion=DiffusionConfig(schedule=Cosine(timesteps=100), label_drop=0.1),
        net=UNetConfig(channels=32, multipliers=(1, 2), blocks=1, attention_at=(4,), heads=2),
        train=TrainConfig(
            steps=300, batch_size=64, lr=1e-3, ema=(0.99,), ema_warmup=True, log_every=10, checkpoint_every=100
        ),
    )


RECIPES: dict[str, Recipe] = {
    entry.name: entry
    for entry in (
        Recipe("demo", "built-in avatars at 32x32, 10 classes, minutes on a CPU; what `make demo` runs", _demo),
        Recipe("digits-8", "scikit-learn's digits at 8x8, seconds on a CPU; for tests", _digits),
        Recipe("cifar10", "CIFAR-10 unconditional, L_hybrid (cifar10_uncond_50M_500K)", _cifar10),
        Recipe(
            "cifar10-vlb",
            "CIFAR-10 unconditional, L_vlb, importance-sampled t (cifar10_uncond_vlb_50M_500K)",
            _as_vlb(_cifar10),
        ),
        Recipe(
            "imagenet64",
            "ImageNet-64 unconditional, 128 channels, L_hybrid (imagenet64_uncond_100M_1500K)",
            _imagenet64,
        ),
        Recipe(
            "imagenet64-vlb",
            "ImageNet-64 unconditional, L_vlb, importance-sampled t (imagenet64_uncond_vlb_100M_1500K)",
            _as_vlb(_imagenet64),
        ),
        Recipe(
            "imagenet64-cond",
            "ImageNet-64 class-conditional, 192 channels (imagenet64_cond_270M_250K)",
            _imagenet64_cond,
        ),
        Recipe("imagenet64-c64", "the scaling family: 64 channels, 30M parameters", _width(64)),
        Recipe("imagenet64-c96", "the scaling family: 96 channels, 68M parameters", _width(96)),
        Recipe("imagenet64-c128", "the scaling family: 128 channels, 121M parameters", _width(128)),
        Recipe("imagenet64-c192", "the scaling family: 192 channels, 272M parameters", _width(192)),
        Recipe("lsun-bedroom", "LSUN bedroom at 256x256 (lsun_uncond_100M_1200K_bs128)", _lsun_bedroom),
        Recipe(
            "lsun-bedroom-bs64",
            "LSUN bedroom at 256x256, batch 64 (lsun_uncond_100M_2400K_bs64)",
            _lsun_bedroom_bs64,
        ),
        Recipe("upsample-64-256", "class-conditional upsampler, 64x64 to 256x256 (upsample_cond_500K)", _upsample),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe of a name.

    Raises:
        ConfigError: There is none; the message names the nearest.
    """
    if name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(name, RECIPES, n=3, cutoff=0.3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ConfigError(f"there is no recipe {name!r}", f"{hint}`iddpm recipes` lists them all")
