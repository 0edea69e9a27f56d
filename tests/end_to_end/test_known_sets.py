"""`--data cifar10` from the command line: downloaded from a local mirror, prepared, trained on; and what goes wrong."""

import hashlib
import io
import json
import tarfile
from types import MappingProxyType

import numpy as np
import pytest

from http_files import serving
from iddpm.cli.main import main
from iddpm.data import opening
from iddpm.data.remote import known_sets
from iddpm.data.remote.download import Remote
from iddpm.data.remote.known_sets import KNOWN, KnownSet
from python_2 import python_2

NAME = "cifar10/cifar-10-python.tar.gz"


def small_cifar() -> bytes:
    """CIFAR-10 with eight pictures in each batch, as it is distributed."""
    draw, file = np.random.default_rng(0), io.BytesIO()
    batches = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    members = {"batches.meta": {"num_cases_per_batch": 8, "label_names": list("abcdefghij"), "num_vis": 3072}}
    for name in batches:
        rows = draw.integers(0, 256, (8, 3072), dtype=np.uint8)
        members[name] = {"data": rows, "labels": draw.integers(0, 10, 8).tolist(), "batch_label": name}
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in members.items():
            packed = python_2(content)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(packed)
            tar.addfile(member, io.BytesIO(packed))
    return file.getvalue()


@pytest.fixture
def mirror(monkeypatch, tmp_path):
    """A local mirror with a small CIFAR-10, which the project takes for the whole one; the cache is empty."""
    content = small_cifar()
    remote = Remote(
        name="cifar-10-python.tar.gz",
        urls=("http://127.0.0.1:9/nowhere",),
        bytes=len(content),
        digest="sha256:" + hashlib.sha256(content).hexdigest(),
    )
    known = {**KNOWN, "cifar10": KnownSet(files=(remote,), attribution="CIFAR-10: A. Krizhevsky, 2009")}
    for module in (known_sets, opening):
        monkeypatch.setattr(module, "KNOWN", MappingProxyType(known))
    monkeypatch.setenv("IDDPM_CACHE", str(tmp_path / "cache"))
    with serving({NAME: content}) as server:
        monkeypatch.setenv("IDDPM_MIRROR", server.url)
        yield server


TINY = ["--train-steps", "1", "--train.batch-size", "4", "--net.channels", "32", "--net.blocks", "1"]
TINY += ["--net.multipliers", "1", "1", "--net.attention-at", "8", "--diffusion.schedule.timesteps", "8"]


def test_cifar10_by_name_is_downloaded_once_and_trained_on(mirror, tmp_path, capsys):
    assert main(["train", "cifar10", "--out", str(tmp_path / "run"), "--json", *TINY]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["step"] == 1
    assert "downloading cifar-10-python.tar.gz" in printed.err
    assert "40 to train on, 8 held out" in printed.err
    assert "A. Krizhevsky" in printed.err
    assert main(["prepare", "cifar10", "--size", "32", "--out", str(tmp_path / "store")]) == 0
    assert len(mirror.asked) == 1
    assert "10 classes: a, b, c" in capsys.readouterr().out


def cut_for_good(server):
    server.cuts = [100] + [0] * 50


def another_file(server):
    server.files[NAME] = server.files[NAME][:-1] + b"\1"


def missing(server):
    server.files.clear()


@pytest.mark.parametrize(
    ("fault", "words"), [(cut_for_good, "cut off after"), (another_file, "sha256"), (missing, "HTTP 404")]
)
def test_what_a_server_does_wrong_is_told_in_two_lines(mirror, tmp_path, capsys, fault, words, monkeypatch):
    monkeypatch.setattr("iddpm.data.remote.download.time.sleep", lambda seconds: None)
    fault(mirror)
    assert main(["prepare", "cifar10", "--size", "32", "--out", str(tmp_path / "store")]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("downloading")]
    assert len(lines) == 2
    assert words in lines[0]
    assert "put the file there by hand" in lines[1]
    assert not (tmp_path / "store").exists()


def test_a_refused_connection_is_told_in_two_lines(mirror, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("IDDPM_MIRROR")
    assert main(["prepare", "cifar10", "--size", "32", "--out", str(tmp_path / "store")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "connection refused" in lines[0]
    assert "cache/downloads/cifar10/cifar-10-python.tar.gz" in lines[1]


def test_a_download_that_was_cut_goes_on(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr("iddpm.data.remote.download.time.sleep", lambda seconds: None)
    mirror.cuts = [5000]
    assert main(["prepare", "cifar10", "--size", "32", "--out", str(tmp_path / "store")]) == 0
    assert mirror.asked[1] == (f"/{NAME}", "bytes=5000-")
