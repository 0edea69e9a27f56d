import json
import time

import torch

from iddpm.runtime.watch import Watch, verdict


def told(phase, seconds, step=7):
    return {"phase": phase, "step": step, "seconds": seconds, "where": "node, process 1"}


def test_nobody_stands_still_where_all_have_moved():
    assert verdict({0: (told("backward", 9.0), 0.0), 1: (told("data", 9.9), 1.0)}, 10.0) == []


def test_who_does_not_wait_for_others_is_at_fault():
    (found,) = verdict({0: (told("backward", 14.0), 0.0), 1: (told("data", 13.0), 1.0)}, 10.0)
    assert (found.rank, found.phase, found.step, found.silent) == (1, "data", 7, False)
    assert str(found) == "rank 1 (node, process 1) has stood still for 13 s in phase 'data' of step 7"


def test_one_that_waits_is_not_named_while_another_may_be():
    assert verdict({0: (told("backward", 12.0), 0.0), 1: (told("data", 9.0), 0.0)}, 10.0) == []


def test_one_that_waits_for_a_patient_phase_is_not_at_fault():
    assert verdict({0: (told("backward", 99.0), 0.0), 1: (told("checkpoint", 0.0), 0.0)}, 10.0) == []


def test_exchange_that_hangs_in_all_is_said_of_all():
    found = verdict({0: (told("exchange", 16.0), 0.0), 1: (told("backward", 17.0), 0.0)}, 10.0)
    assert [one.rank for one in found] == [0, 1]


def test_silent_one_is_at_fault_whatever_it_said_last():
    (found,) = verdict({0: (told("data", 30.0), 0.0), 1: (told("backward", 0.0), 31.0), 2: ({"beats": 0}, 1.0)}, 10.0)
    assert (found.rank, found.silent, found.seconds) == (1, True, 31.0)
    assert "no sign of life" in str(found)


def test_process_says_where_it_is_and_a_patient_phase_may_last():
    store = torch.distributed.HashStore()
    watch = Watch(2, 3, store, patience_seconds=0.2)  # one that looks at nobody
    try:
        watch.at("data", 3)
        time.sleep(0.3)
        seen = json.loads(store.get("watch/2"))
        assert (seen["phase"], seen["step"]) == ("data", 3)
        assert seen["seconds"] > 0.1
        watch.at("prepare", patient=True)
        time.sleep(0.3)
        assert json.loads(store.get("watch/2"))["seconds"] == 0
    finally:
        watch.close()


def test_hang_is_told_then_ends_the_process(monkeypatch):
    store, ended, found = torch.distributed.HashStore(), [], []

    monkeypatch.setattr("iddpm.runtime.watch.os._exit", ended.append)
    watch = Watch(0, 2, store, patience_seconds=0.3)
    watch.expect(0.2, found.extend)
    store.set("watch/1", json.dumps({"beats": 1} | told("data", 5.0)))
    deadline = time.monotonic() + 20
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)
    watch.close()
    assert ended == [1]  # and once: the store knows that the end has been told
    assert [(one.rank, one.phase) for one in found] == [(1, "data")]
