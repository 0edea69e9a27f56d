"""What the machine and the software are: for provenance and for people."""

import importlib.metadata
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import iddpm

__all__ = ["cpu_name", "describe_device", "provenance"]

_PACKAGES = ("torch", "numpy", "pillow", "safetensors")


def provenance(device: torch.device) -> dict[str, Any]:
    """Versions, device, threads, command and time."""
    return {
        "iddpm": iddpm.__version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in _PACKAGES},
        "platform": platform.platform(),
        "device": describe_device(device),
        "threads": torch.get_num_threads(),
        "command": shlex.join(sys.argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def describe_device(device: torch.device) -> str:
    """A device for people, e.g. "CPU, 2 threads (AMD EPYC)"."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    if device.type == "cpu":
        return f"CPU, {torch.get_num_threads()} threads ({cpu_name()})"
    return str(device)


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _git_commit() -> str | None:
    """The commit of the project's own checkout, if it runs from one; "+changes" where it was edited since."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return f"{commit}+changes" if _git(root, "status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=5)
    return done.stdout.strip()
