import signal
import time

import pytest

from iddpm.training.stop import StopRequest


def test_nobody_asks_at_first(tmp_path):
    with StopRequest(tmp_path / "stop", time.monotonic() + 1000) as stop:
        assert stop.asked() is None


def test_file_asks_once_and_is_removed(tmp_path):
    with StopRequest(tmp_path / "stop") as stop:
        (tmp_path / "stop").touch()
        assert stop.asked() == str(tmp_path / "stop")
        assert not (tmp_path / "stop").exists()
        assert stop.asked() == str(tmp_path / "stop")


def test_file_that_cannot_be_removed_asks_all_the_same(tmp_path):
    (tmp_path / "stop").mkdir()
    with StopRequest(tmp_path / "stop") as stop:
        assert stop.asked() == str(tmp_path / "stop")


def test_deadline_asks_from_its_moment_on(monkeypatch):
    now = [10.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with StopRequest(deadline=12.0) as stop:
        assert stop.asked() is None
        now[0] = 12.0
        assert stop.asked() == "the time limit"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_first_signal_asks_and_handlers_are_put_back(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        signal.raise_signal(number)
        assert stop.asked() == number.name
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_second_ctrl_c_interrupts_whatever_came_before(first):
    with StopRequest() as stop:
        signal.raise_signal(first)
        if first != signal.SIGINT:
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.asked() == first.name


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_what_schedulers_send_may_come_twice(number):
    with StopRequest() as stop:
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert stop.asked() == number.name


def test_one_ctrl_c_after_another_reason_only_asks(tmp_path):
    (tmp_path / "stop").touch()
    with StopRequest(tmp_path / "stop") as stop:
        assert stop.asked() == str(tmp_path / "stop")
        signal.raise_signal(signal.SIGINT)
        assert stop.asked() == str(tmp_path / "stop")


def test_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.asked() is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_was_asked_travels_as_a_number(tmp_path):
    file = tmp_path / "stop"
    request = StopRequest(file)
    assert (request.code(), StopRequest.reason(0, file)) == (0, None)
    file.touch()
    assert StopRequest.reason(request.code(), file) == str(file)
    late = StopRequest(deadline=0.0)
    assert StopRequest.reason(late.code(), file) == "the time limit"
    with StopRequest() as asked:
        signal.raise_signal(signal.SIGTERM)
        assert StopRequest.reason(asked.code(), file) == "SIGTERM"


def test_what_torchrun_sends_on_is_no_second_ctrl_c():
    with StopRequest(together_seconds=60.0) as request:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert request.asked() == "SIGINT"
    with StopRequest(together_seconds=0.0):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
