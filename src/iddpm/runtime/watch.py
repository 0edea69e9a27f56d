"""Finds the process of a job that has died or hangs, and names it, instead of hours of silence.

Each process says in the store, from a thread of its own, what it does and for how long; the first looks at all of them, the
second at the first. Clocks of different machines are never compared.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.distributed import Store

__all__ = ["Stalled", "Watch", "verdict"]

PATIENCE_SECONDS = 600.0
_LONGEST_INTERVAL_SECONDS = 5.0
_ENDED = "watch/ended"  # there once a process has found out and ends the job: its own silence is no news then
_WAITING = ("backward", "exchange")
"""Phases in which a process waits for the others: who stands still there is rarely the cause."""


@dataclass(frozen=True, kw_only=True)
class Stalled:
    """A process that stands still.

    Attributes:
        where: Its machine and process number.
        seconds: For how long it has.
        silent: Whether nothing is heard of it at all: it has died, was stopped, or its machine is gone.
    """

    rank: int
    where: str
    phase: str
    step: int | None
    seconds: float
    silent: bool

    def __str__(self) -> str:
        at = "" if self.step is None else f" of step {self.step}"
        how = "has given no sign of life" if self.silent else "has stood still"
        return f"rank {self.rank} ({self.where}) {how} for {self.seconds:.0f} s in phase {self.phase!r}{at}"


class Watch:
    """What this process does, for the others to see; ends the process where one of those it looks at hangs.

    Args:
        rank: This process.
        size: All.
        store: Shared by them.
        patience_seconds: How long a process may stand still.
    """

    def __init__(self, rank: int, size: int, store: Store, patience_seconds: float = PATIENCE_SECONDS):
        self.patience_seconds = patience_seconds
        self._on_hang: Callable[[list[Stalled]], object] = lambda _: None
        self._rank, self._store = rank, store
        self._watched = [r for r in range(size) if r != rank] if rank == 0 else [0] if rank == 1 else []
        self._now = ("start", None, True, time.monotonic())
        self._beats = 0
        self._heard: dict[int, tuple[int, float]] = {}
        self._leaving, self._wake = False, threading.Event()
        self._thread = threading.Thread(target=self._work, name="watch", daemon=True)
        self._thread.start()

    def at(self, phase: str, step: int | None = None, patient: bool = False) -> None:
        """Say what begins now. In a patient phase only death counts, not how long it takes."""
        self._now = (phase, step, patient, time.monotonic())

    def expect(self, patience_seconds: float, on_hang: Callable[[list[Stalled]], object]) -> None:
        """From now on: how long a process may stand still, and what is called where one does, before this process ends."""
        self.patience_seconds, self._on_hang = patience_seconds, on_hang
        self._wake.set()

    def close(self) -> None:
        """Look no more."""
        self._leaving = True
        self._wake.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            while not self._leaving:
                self._beat()
                if self._watched and not self._store.check([_ENDED]) and (found := self._look()):
                    self._end(found)
                self._wake.wait(min(_LONGEST_INTERVAL_SECONDS, self.patience_seconds / 4))
                self._wake.clear()
        except RuntimeError:
            # The store has gone, with the torchrun that kept it: nobody starts this job again, and nobody watches it.
            if not self._leaving:
                _tell(
                    "the torchrun of this job is gone: this process ends; the same command goes on from its last checkpoint"
                )
                os._exit(1)

    def _beat(self) -> None:
        phase, step, patient, since = self._now
        self._beats += 1
        told = {
            "beats": self._beats,
            "phase": phase,
            "step": step,
            "seconds": 0.0 if patient else time.monotonic() - since,
            "where": f"{socket.gethostname()}, process {os.getpid()}",
        }
        self._store.set(f"watch/{self._rank}", json.dumps(told))

    def _look(self) -> list[Stalled]:
        now, states = time.monotonic(), {}
        for rank in self._watched:
            key = f"watch/{rank}"
            told = json.loads(self._store.get(key)) if self._store.check([key]) else {"beats": 0}
            beats, heard_at = self._heard.get(rank, (-1, now))
            if told["beats"] != beats:
                self._heard[rank] = (told["beats"], now)
                heard_at = now
            states[rank] = (told, now - heard_at)
        if self._rank == 0:
            phase, step, patient, since = self._now
            own = {"phase": phase, "step": step, "seconds": 0.0 if patient else now - since, "where": "this process"}
            states[0] = (own, 0.0)
        found = verdict(states, self.patience_seconds)
        # The first judges all; the second only finds out whether it is still there to do so.
        return found if self._rank == 0 else [one for one in found if one.silent]

    def _end(self, found: list[Stalled]) -> None:
        for one in found:
            _tell(str(one))
        self._on_hang(found)
        self._store.set(_ENDED, "1")
        os._exit(1)


def _tell(line: str) -> None:
    # Straight to the file: the main thread may hold the console's lock for good.
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"iddpm: {line}\n".encode())


def verdict(states: Mapping[int, tuple[Mapping[str, Any], float]], patience_seconds: float) -> list[Stalled]:
    """Who is at fault that the job stands still; empty where it does not.

    Args:
        states: By rank, what a process has said last, and how many seconds ago it was heard of.
        patience_seconds: How long a process may stand still.
    """
    stalled = [
        Stalled(
            rank=rank,
            where=told.get("where", "never heard of"),
            phase=told.get("phase", "start"),
            step=told.get("step"),
            seconds=max(unheard, told.get("seconds", 0.0)),
            silent=unheard > patience_seconds,
        )
        for rank, (told, unheard) in sorted(states.items())
        if max(unheard, told.get("seconds", 0.0)) > patience_seconds
    ]
    silent = [one for one in stalled if one.silent]
    busy = [one for one in stalled if one.phase not in _WAITING]
    # Who waits for others waits for one that may take long, or has stood still for less long; or the exchange itself hangs.
    all_wait = len(stalled) == len(states) and min(one.seconds for one in stalled) > 1.5 * patience_seconds
    return silent or busy or (stalled if all_wait else [])
