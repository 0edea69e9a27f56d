"""`iddpm sample`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from iddpm.cli.console import parse, print_json, telling

__all__ = ["Arguments", "run"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Draw pictures from a run. Settings come from the run directory; picture i depends on (seed, i) alone.

    What was interrupted goes on where it was, by the same command. Over several processes, with the same pictures:
    torchrun --nproc-per-node 8 -m -- iddpm sample RUN ... (after --, torchrun does not take --num for its own).
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Run directory."""
    up: Annotated[Path | None, tyro.conf.Positional] = None
    """Run directory of an upsampler that enlarges the pictures."""
    num: int = 16
    """Number of pictures."""
    steps: str | None = None
    """Sampling steps; None: 100, or T where that is less. 100 (evenly spaced, from the last trained index on), 10,15,20
    (by section, nearest the data first), ddim50 (integer stride from 0), at:0,250,999 (exactly these); never more than T.
    For two runs, stages apart by '/': 100/27."""
    sampler: Literal["ancestral", "ddim"] = "ancestral"
    """ancestral uses the learned variance; ddim is better below about 50 steps."""
    eta: float | None = None
    """Noise of ddim, from 0 (none, the default) to 1."""
    seed: int = 0
    """Seed; the same seed starts every sampler from the same noise."""
    label: str | None = None
    """One class for all, by name or number; otherwise the classes take turns."""
    guidance: float = 1.0
    """Weight of classifier-free guidance: 1 is none, larger follows the label more. Needs a run trained with label-drop;
    an upsampler is not guided."""
    weights: str = "ema"
    """ema (the run's first rate), ema-RATE, model (not averaged), or power-W: the average of any relative width W, made from
    those that the run keeps (ema-widths)."""
    at_step: int | None = None
    """Training step of the checkpoint; None: the newest (as for an upsampler always)."""
    batch_size: int | None = None
    """Pictures at once; None: chosen by device and size."""
    precision: Literal["float32", "tf32", "bf16", "fp16"] | None = None
    """None: as the run's config says, "auto" meaning bf16 where this device computes it fast."""
    device: str | None = None
    """cpu, cuda, cuda:N or mps; None: a CUDA device where there is one."""
    json: bool = False
    """Print one JSON object: path, grid, num, sampler, steps, timesteps, seconds, seconds_per_image,
    processes."""


def run(argv: list[str]) -> None:
    """Parse and run."""
    arguments = parse(Arguments, argv, prog="sample")
    from iddpm.cli.steps import sampler_of, stages_of
    from iddpm.commands.draw import SampleRequest
    from iddpm.commands.sample import sample

    steps, up_steps = stages_of(arguments.steps, 1 if arguments.up is None else 2)
    request = SampleRequest(
        num=arguments.num,
        steps=steps,
        sampler=sampler_of(arguments.sampler, arguments.eta),
        seed=arguments.seed,
        label=arguments.label,
        guidance=arguments.guidance,
        weights=arguments.weights,
        step=arguments.at_step,
        batch_size=arguments.batch_size,
        precision=arguments.precision,
        device=arguments.device,
    )
    with telling() as listener:
        up_request = replace(request, steps=up_steps, guidance=1.0, step=None)
        facts = sample(arguments.run, request, arguments.up, listener, up_request=up_request)
    if arguments.json:
        print_json(facts)
        return
    each = facts["seconds_per_image"]
    pace = "all drawn before" if each is None else f"{each:.3g} s an image"
    over = f" over {facts['processes']} processes" if facts.get("processes", 1) > 1 else ""
    print(f"{facts['num']} pictures, {facts['sampler']}, {facts['steps']} steps, {pace}{over}")
    print(f"  {facts['path']}/samples.npz (arr_0 uint8 NHWC, arr_1 labels)\n  {facts['grid']}")
