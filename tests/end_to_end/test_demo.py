import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.slow
def test_demo_does_everything_once_and_says_how_long(tmp_path):
    """The shortest demo: the fewest steps it trains, all it samples, the page; then again, with nothing left to do."""
    command = [sys.executable, str(DEMO), "--out", str(tmp_path / "demo"), "--minutes", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": str(os.cpu_count())}
    first = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "this will take about" in first.stderr
    assert "done in" in first.stderr
    run = tmp_path / "demo"
    assert (run / "report" / "index.html").stat().st_size > 100_000
    kinds = {(facts["sampler"], facts["steps"]) for facts in map(_read, run.glob("samples/*/samples.json"))}
    assert kinds == {(sampler, steps) for sampler in ("ancestral", "ddim") for steps in (10, 25, 50, 100)}
    (bound,) = map(_read, run.glob("evaluations/*.json"))
    assert (bound["num_images"], bound["num_steps"], bound["split"]) == (60, 50, "held-out")
    assert 2 < bound["bits_per_dim"] < 9
    again = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert again.stderr.count("is there already; nothing to do") == 9


def _read(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))
