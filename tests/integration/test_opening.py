"""All processes open a run at the same checkpoint; threads stand for them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from iddpm.commands import opening
from iddpm.commands.opening import open_together
from iddpm.runtime.channel import Channel
from iddpm.runtime.errors import RunError
from iddpm.runtime.world import World
from tiny import Lines

CPU = torch.device("cpu")


def in_two(work):
    store = dist.HashStore()
    worlds = [World(rank=r, size=2, device=CPU, channel=Channel(r, 2, store, "main")) for r in range(2)]
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(work, worlds))


def test_the_checkpoint_is_the_one_that_the_first_has_found(trained, monkeypatch):
    asked, told, real = [], [Lines(), Lines()], opening.open_run

    def watching(path, *, step, **rest):
        asked.append(step)
        return real(path, step=step, **rest)

    monkeypatch.setattr(opening, "open_run", watching)
    runs = in_two(
        lambda world: open_together(world, trained, told[world.rank], weights="ema", step=None, precision=None)
    )
    assert asked == [None, 8]
    assert [run.step for run in runs] == [8, 8]
    assert runs[0].denoiser is not runs[1].denoiser


def test_what_the_first_finds_wrong_is_raised_in_all(tmp_path):
    def work(world):
        with pytest.raises(RunError, match="not a run directory") as refused:
            open_together(world, tmp_path, Lines(), weights="ema", step=None, precision=None)
        return refused.value.is_told_elsewhere

    assert in_two(work) == [False, True]
