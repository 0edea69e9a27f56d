"""`iddpm likelihood`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from iddpm.cli.console import parse, print_json, telling

__all__ = ["Arguments", "run"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Bits per dim of pictures under a run: the variational bound, its parts, and its error.

    Over several processes, with the same result: torchrun --nproc-per-node 8 -m -- iddpm likelihood RUN ...
    (after --, torchrun does not take --num for its own).
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Run directory."""
    data: str | None = None
    """A store or a source of pictures; None: the store that the run was trained on."""
    split: Literal["held-out", "train", "all"] = "held-out"
    """Which pictures; training never read the held-out ones."""
    num: int | None = None
    """Number of pictures; None: the whole split."""
    steps: str | None = None
    """Bound of a shorter chain: as for `iddpm sample`. None: the whole chain (T network evaluations a picture)."""
    seed: int = 0
    """Seed of the noise."""
    weights: str = "ema"
    """ema (the run's first rate), ema-RATE, model (not averaged), or power-W: the average of any relative width W, made from
    those that the run keeps (ema-widths)."""
    at_step: int | None = None
    """Training step of the checkpoint; None: the newest."""
    batch_size: int = 32
    """Pictures at once."""
    precision: Literal["float32", "tf32", "bf16", "fp16"] = "float32"
    """Arithmetic of the network."""
    device: str | None = None
    """cpu, cuda, cuda:N or mps; None: a CUDA device where there is one."""
    json: bool = False
    """Print one JSON object: bits_per_dim, standard_error_bits_per_dim, its terms, num_images, num_steps, seconds, processes."""


def run(argv: list[str]) -> None:
    """Parse and run."""
    arguments = parse(Arguments, argv, prog="likelihood")
    from iddpm.cli.steps import steps_of
    from iddpm.commands.likelihood import LikelihoodRequest, likelihood

    request = LikelihoodRequest(
        data=arguments.data,
        split=arguments.split.replace("-", "_"),  # type: ignore[arg-type]
        num=arguments.num,
        steps=None if arguments.steps is None else steps_of(arguments.steps),
        seed=arguments.seed,
        weights=arguments.weights,
        step=arguments.at_step,
        batch_size=arguments.batch_size,
        precision=arguments.precision,
        device=arguments.device,
    )
    with telling() as listener:
        facts = likelihood(arguments.run, request, listener)
    if arguments.json:
        print_json(facts)
    else:
        _tell(facts)


def _tell(facts: dict[str, Any]) -> None:
    error = facts["standard_error_bits_per_dim"]
    spread = f" +- {error:.4f} (standard error over {facts['num_images']} pictures)" if error is not None else ""
    middle, steps = sum(facts["terms_bits_per_dim"][:-1]), facts["num_steps"]
    prior, decoder = facts["prior_bits_per_dim"], facts["decoder_bits_per_dim"]
    print(f"{facts['bits_per_dim']:.4f} bits/dim{spread}")
    print(f"  prior {prior:.3g} + {steps - 1} steps {middle:.4f} + decoder {decoder:.4f} bits/dim")
    print(f"  {facts['split']} pictures, {steps} of T = {facts['chain_steps']} steps, x0 clipped")
    print(f"  {facts['weights']} weights of step {facts['train_step']}\n  {facts['path']}")
