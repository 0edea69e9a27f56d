"""The `iddpm` command: finds the command's own file and runs it. Imports nothing heavy, so that help is quick."""

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["COMMANDS", "command", "main"]

COMMANDS: dict[str, str] = {
    "recipes": "list the runs that have a name",
    "show": "what a recipe or a run is: settings, parameters, MACs and FLOPs",
    "prepare": "turn pictures into a store that training reads",
    "train": "train a recipe, or resume it: the same command again",
    "sample": "draw pictures from a run, with any number of steps",
    "likelihood": "bits per dim of held-out pictures under a run",
    "report": "write a run's report as a page",
}


_TELLING_SECONDS = (
    2.0  # torchrun ends all processes where one has failed: the one that tells why must have told by then
)
_LESS_MEMORY = "use less at once: --train.micro-batch-size for train (the step stays the same), --batch-size elsewhere"


_OF_MANY = ("train", "sample", "likelihood")
"""Commands that share their work out over the processes that torchrun starts; of any other the first does all."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0 done, 2 bad input, 1 anything else.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if _size() == 1 or (rank := _rank()) == 0:
        return _main(arguments)
    if not arguments or arguments[0] not in _OF_MANY:
        return 0
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return _run(arguments[0], arguments[1:], rank)


def _main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        from iddpm import __version__

        print(f"iddpm {__version__}")
        return 0
    return _run(arguments[0], arguments[1:])


def _size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _run(name: str, arguments: list[str], rank: int = 0) -> int:
    from iddpm.runtime.errors import IddpmError

    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        print(f"iddpm: there is no command {name!r}\n{hint}allowed: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        importlib.import_module(f"iddpm.cli.{name}").run(arguments)
        if _size() > 1:
            from iddpm.runtime.world import close_world

            close_world()
    except IddpmError as error:
        if _is_own(rank, error.is_told_elsewhere):
            print(f"iddpm {name}: {f'rank {rank}: ' if rank else ''}{error}", file=sys.stderr)
        else:
            time.sleep(_TELLING_SECONDS)
        return error.exit_status
    except (RuntimeError, MemoryError) as error:
        from iddpm.runtime.memory import first_line, is_out_of_memory

        if not is_out_of_memory(error):
            raise
        if getattr(error, "is_told_elsewhere", False):
            time.sleep(_TELLING_SECONDS)
            return 1
        print(f"iddpm {name}: out of memory ({first_line(error)})\n{_LESS_MEMORY}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\niddpm {name}: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the interpreter's last flush is quiet
        return 1
    return 0


def _is_own(rank: int, told_elsewhere: bool | None) -> bool:
    """Whether an error is this process's to tell."""
    if rank == 0:
        return not told_elsewhere
    if told_elsewhere is None:
        from iddpm.runtime.world import is_open

        return is_open()  # until they have met, all find the same fault in the same flags
    return not told_elsewhere


def _overview() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    return (
        "iddpm: Improved DDPM (Nichol and Dhariwal 2021): train, sample, measure; know what it costs.\n\n"
        f"usage: iddpm COMMAND ...\n\ncommands:\n{rows}\n\n"
        "`iddpm COMMAND --help` explains a command and its units. Every command takes --json: one JSON object on stdout,\n"
        "everything else on stderr. Start with: iddpm train demo --out runs/first"
    )


def command() -> NoReturn:
    """Run the process's command and end the process."""
    status = main()
    if (status and _size() > 1) or any(thread.daemon for thread in threading.enumerate()):
        # A thread that still writes a checkpoint is not waited for; ended by the interpreter it would abort in torch's code.
        # Nor are other processes, which will not come where this one has failed.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    command()
