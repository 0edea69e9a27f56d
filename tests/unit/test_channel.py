from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from iddpm.runtime.channel import ALONE, Channel
from iddpm.runtime.errors import ConfigError, RunError


def in_each(size, work):
    """What `work(channel)` gives in each of several processes (threads here), by rank."""
    store = torch.distributed.HashStore()
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(Channel(rank, size, store, "test")), range(size)))


def test_one_process_is_the_same_path():
    assert ALONE.gather(3) == [3]
    assert ALONE.first(lambda: 4) == 4
    assert ALONE.together(lambda: 5) == 5
    assert ALONE.in_turn(lambda: 6) == 6
    with pytest.raises(RunError) as raised:
        ALONE.together(lambda: (_ for _ in ()).throw(RunError("what", "fix")))
    assert raised.value.is_told_elsewhere is False


def test_values_come_by_rank_however_often():
    def work(channel):
        return [channel.gather((channel.rank, number)) for number in range(20)]

    for found in in_each(3, work):
        assert found == [[(rank, number) for rank in range(3)] for number in range(20)]


def test_work_of_the_first_is_done_once_and_known_to_all():
    done = []

    def work(channel):
        return channel.first(lambda: (done.append(channel.rank), "result")[1])

    assert in_each(3, work) == ["result"] * 3
    assert done == [0]


def test_error_in_one_is_an_error_in_all_told_once_and_whole():
    def fails(rank):
        if rank == 1:
            raise ConfigError("what is wrong", "what to do")

    def work(channel):
        try:
            channel.together(lambda: fails(channel.rank))
        except ConfigError as error:
            return error.what, error.fix, error.is_told_elsewhere, channel.gather("goes on")
        return None

    rest = ["goes on"] * 3
    expected = [("what is wrong", "what to do", elsewhere, rest) for elsewhere in (True, False, True)]
    assert in_each(3, work) == expected


def test_first_in_turn_has_done_before_the_others_begin():
    done = []

    def work(channel):
        return channel.in_turn(lambda: (done.append(channel.rank), channel.rank)[1])

    assert in_each(3, work) == [0, 1, 2]
    assert (done[0], sorted(done)) == (0, [0, 1, 2])
