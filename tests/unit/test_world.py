import pytest
import torch

from iddpm.runtime.errors import ConfigError
from iddpm.runtime.world import open_world


def test_one_process_is_the_first_of_one(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    world = open_world("cpu")
    assert (world.rank, world.size, world.device, world.is_first) == (0, 1, torch.device("cpu"), True)


def test_the_default_device_is_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert open_world().device == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert open_world().device == torch.device("cuda")


@pytest.mark.parametrize("device", ["tpu", "cpu:x", "meta", "cuda:99", ""])
def test_a_device_that_is_not_there_is_refused_by_name(device):
    with pytest.raises(ConfigError, match=f"device '{device}'") as refused:
        open_world(device)
    assert "cpu" in str(refused.value.fix)


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="one process"):
        open_world("cpu")
