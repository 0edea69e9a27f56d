"""Starting several processes as torchrun does, for tests."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["launched", "rank", "results", "write_result"]


def launched(
    script: Path, processes: int, *arguments: object, restarts: int = 0, seconds: float = 240.0
) -> subprocess.CompletedProcess[str]:
    """Run a script in several processes on this machine, and wait for them; what they printed is in the result."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {"PYTHONPATH": f"{here.parent / 'src'}{os.pathsep}{here}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--max-restarts", str(restarts), str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env=environment,
    )


def rank() -> int:
    """Of this process, 0 where there is one."""
    return int(os.environ.get("RANK", "0"))


def write_result(folder: Path, result: Any) -> None:
    """Leave what this process has found out."""
    (folder / f"result-{rank()}.json").write_text(json.dumps(result))


def results(folder: Path) -> list[Any]:
    """What the processes have left, by rank."""
    files = sorted(folder.glob("result-*.json"), key=lambda file: int(file.stem.rpartition("-")[2]))
    return [json.loads(file.read_text()) for file in files]
