"""Writes docs/commands.md from the commands' own help and the table of recipes, so that neither can drift."""

import os
import subprocess
import sys
from pathlib import Path

from iddpm.cli.main import COMMANDS

HERE = Path(__file__).parent


def commands_page() -> str:
    """The page, from `iddpm COMMAND --help`."""
    parts = ["# Commands\n\nWritten by `make docs` from the commands' own help.\n", _block("iddpm --help", ["--help"])]
    parts += [_section(name) for name in COMMANDS]
    return "\n".join(parts)


def _section(name: str) -> str:
    arguments = [name, "demo", "--help"] if name == "train" else [name, "--help"]
    extra = _block("iddpm recipes", ["recipes"]) if name == "recipes" else ""
    return f"## {name}\n\n{_block(' '.join(['iddpm', *arguments]), arguments)}{extra}"


def _block(title: str, arguments: list[str]) -> str:
    plain = os.environ | {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", "iddpm", *arguments], capture_output=True, text=True, check=True, env=plain
    )
    text = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    return f"```\n$ {title}\n{text}\n```\n"


if __name__ == "__main__":
    (HERE / "commands.md").write_text(commands_page(), encoding="utf-8")
    print(f"written {HERE / 'commands.md'}")
