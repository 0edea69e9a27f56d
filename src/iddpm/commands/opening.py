"""A run, opened by all processes at the same checkpoint."""

from pathlib import Path

from iddpm.experiment.open_run import OpenRun, open_run
from iddpm.runtime.precision import Precision
from iddpm.runtime.telling import SILENT, Listener
from iddpm.runtime.world import World

__all__ = ["open_together"]


def open_together(
    world: World,
    path: Path,
    listener: Listener,
    *,
    weights: str,
    step: int | None,
    precision: Precision | None,
) -> OpenRun:
    """`open_run` in every process, at the checkpoint that the first one finds: a run that still trains may write others.

    Raises:
        InputError: As `open_run`, in all processes.
    """
    mine: list[OpenRun] = []

    def open_at(step: int | None, told: Listener) -> OpenRun:
        return open_run(path, device=world.device, weights=weights, step=step, precision=precision, listener=told)

    def begin() -> int:
        mine.append(open_at(step, listener))
        return mine[0].step

    found = world.channel.first(begin)
    return world.channel.together(lambda: mine[0] if mine else open_at(found, SILENT))
