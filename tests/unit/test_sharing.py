"""Work shared out over processes; here threads stand for them, which a store in memory does not notice."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest
import torch
import torch.distributed as dist

from iddpm.runtime.channel import Channel
from iddpm.runtime.errors import ConfigError, OutputError
from iddpm.runtime.sharing import Tally, share, together
from iddpm.runtime.world import World
from tiny import Lines

CPU = torch.device("cpu")
ALONE = World(rank=0, size=1, device=CPU)


def in_each(size, work):
    """What came of the work in each of so many processes, errors included."""
    store = dist.HashStore()
    worlds = [World(rank=r, size=size, device=CPU, channel=Channel(r, size, store, "main")) for r in range(size)]

    def outcome(world):
        try:
            return work(world)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(outcome, worlds))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_each_piece_is_done_once(size, count):
    def work(world):
        done = []
        share(world, [f"piece {number}" for number in range(count)], done.append)
        return done

    done = in_each(size, work)
    assert sorted(chain(*done)) == [f"piece {number}" for number in range(count)]
    assert all(part == sorted(part) for part in done)


def test_of_one_process_all_is_done_in_order():
    done = []
    share(ALONE, range(4), done.append)
    assert done == [0, 1, 2, 3]


def test_dst_03_who_is_quick_does_more_and_none_waits_while_there_is_work():
    def work(world):
        done = []

        def one(number):
            time.sleep(0.2 if world.rank else 0.01)
            done.append(number)

        share(world, range(20), one)
        return done

    quick, slow = in_each(2, work)
    assert len(quick) > 3 * len(slow) > 0


def test_one_after_another_has_a_queue_of_its_own():
    def work(world):
        done = []
        for _ in range(3):
            share(world, range(5), done.append)
        return done

    assert sorted(chain(*in_each(2, work))) == sorted(3 * list(range(5)))


def test_an_error_in_one_is_raised_in_all_and_nothing_new_is_begun():
    begun = [threading.Event(), threading.Event()]

    def work(world):
        done = []

        def one(number):
            begun[world.rank].set()
            begun[1 - world.rank].wait(5)
            if world.rank == 1:
                raise OutputError("the disk is full", "free it")
            time.sleep(0.2)
            done.append(number)

        try:
            share(world, range(100), one)
        except OutputError as error:
            return error, done
        raise AssertionError

    (heard, done), (own, _) = in_each(2, work)
    assert (heard.what, heard.fix) == (own.what, own.fix) == ("the disk is full", "free it")
    assert heard.is_told_elsewhere is True
    assert own.is_told_elsewhere is False
    assert len(done) == 1


@pytest.mark.parametrize("raised", [torch.OutOfMemoryError("no room\nbacktrace"), MemoryError("no room")])
def test_memory_that_has_run_out_in_one_is_raised_in_all(raised):
    def work(world):
        def one():
            if world.rank == 1:
                raise raised

        together(world, one)

    heard, own = in_each(2, work)
    assert own is raised
    assert isinstance(heard, torch.OutOfMemoryError)
    assert str(heard) == "no room"
    assert heard.is_told_elsewhere


def test_where_several_fail_all_raise_what_the_first_of_them_did():
    def work(world):
        def one():
            if world.rank:
                raise ConfigError(f"rank {world.rank}")

        together(world, one)

    assert [error.what for error in in_each(3, work)] == ["rank 1"] * 3


def test_an_error_in_the_program_is_not_kept_back():
    def work():
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        together(ALONE, work)


def test_what_comes_of_work_is_had_where_it_was_done():
    assert in_each(3, lambda world: together(world, lambda: world.rank)) == [0, 1, 2]


def test_tally_of_one_process_is_exact_and_told_at_each_step():
    told = Lines()
    tally = Tally(ALONE, told, "counting", 7, done=1)
    for _ in range(3):
        tally.add(2)
    tally.finish()
    assert told.progressed == [("counting", done, 7) for done in (3, 5, 7)]


def test_tally_of_several_is_shown_by_the_first_alone_and_comes_to_the_total(monkeypatch):
    monkeypatch.setattr("iddpm.runtime.sharing._TOLD_EVERY_SECONDS", 0.0)
    shown = [Lines(), Lines()]

    def work(world):
        tally = Tally(world, shown[world.rank], "counting", 20)
        for _ in range(10 if world.rank else 2):
            tally.add(1)
        world.channel.gather(None)
        if world.is_first:
            tally.add(8)
        tally.finish()

    in_each(2, work)
    assert shown[1].progressed == []
    counts = [done for _, done, _ in shown[0].progressed]
    assert counts == sorted(counts)
    assert counts[-1] == 20
    assert counts.count(20) == 1
