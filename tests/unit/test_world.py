from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from iddpm.runtime.errors import ConfigError
from iddpm.runtime.world import World, _fresh, is_lost_contact, open_world


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


def test_several_processes_without_a_meeting_place_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set") as refused:
        open_world("cpu")
    assert "torchrun" in str(refused.value.fix)


def test_process_without_a_gpu_of_its_own_says_how_many_there_are(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="process 3 of this machine has no CUDA device: it has 2") as refused:
        open_world("cuda")
    assert refused.value.is_told_elsewhere is False


@pytest.mark.parametrize("device", ["cuda:1", "mps"])
def test_several_processes_take_no_single_device(monkeypatch, device):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="for several processes"):
        open_world(device)


@pytest.mark.parametrize(("size", "count"), [(1, 5), (2, 5), (3, 3), (4, 6), (5, 128)])
def test_parts_in_order_make_the_whole_and_differ_by_one(size, count):
    parts = [World(rank=rank, size=size, device=torch.device("cpu")).rows(count) for rank in range(size)]
    assert [place for part in parts for place in range(count)[part]] == list(range(count))
    lengths = [part.stop - part.start for part in parts]
    assert max(lengths) - min(lengths) <= 1


def meeting(store, size):
    """Processes that meet, as threads; what each then finds under a key."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: _fresh(store, rank, size), range(size)))


def test_meeting_in_a_store_of_an_earlier_one_starts_clean():
    store = torch.distributed.HashStore()
    first = meeting(store, 3)
    first[0].set("left", "old")
    assert first[2].get("left") == b"old"
    second = meeting(store, 3)
    assert not second[1].check(["left"])
    second[1].set("left", "new")
    assert second[0].get("left") == b"new"


def test_errors_of_the_engines_are_known_as_lost_contact():
    assert is_lost_contact(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"))
    assert is_lost_contact(RuntimeError("NCCL communicator was aborted"))
    assert not is_lost_contact(RuntimeError("shape '[3]' is invalid"))
