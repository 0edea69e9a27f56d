import hashlib
from urllib.parse import urlsplit

import pytest

from http_files import refusing, serving
from iddpm.data.remote.download import Remote
from iddpm.data.remote.known_sets import KNOWN, KnownSet, fetch_known
from iddpm.runtime.errors import ConfigError, DataError

FILES = [(name, file) for name, known in KNOWN.items() for file in known.files]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def known(*contents):
    """A well-known set of small files."""
    files = tuple(
        Remote(name=f"{n}.gz", urls=(refusing(),), bytes=len(each), digest=f"md5:{hashlib.md5(each).hexdigest()}")
        for n, each in enumerate(contents)
    )
    return KnownSet(files=files, attribution="me")


@pytest.mark.parametrize(("name", "file"), FILES, ids=[f"{name}/{file.name}" for name, file in FILES])
def test_facts_are_complete(name, file):
    algorithm, _, digest = file.digest.partition(":")
    assert (algorithm, len(bytes.fromhex(digest))) == ("sha256", 32)
    assert file.bytes > 4000
    assert len(file.urls) >= 2
    assert len({urlsplit(url).hostname for url in file.urls}) == len(file.urls)
    assert all(url.endswith(f"/{file.name}") for url in file.urls)


def test_no_two_files_are_the_same():
    assert len({file.digest for _, file in FILES}) == len({file.bytes for _, file in FILES}) == 10


def test_every_set_says_whom_to_credit_in_one_line():
    assert list(KNOWN) == ["cifar10", "cifar100", "mnist", "fashion-mnist"]
    for name, known in KNOWN.items():
        assert name.partition("-")[0].rstrip("01") in known.attribution.lower()
        assert "\n" not in known.attribution
    assert len(KNOWN["fashion-mnist"].classes) == 10


def test_set_of_one_file_is_that_file(tmp_path, monkeypatch):
    monkeypatch.setitem(KNOWN, "cifar10", known(b"archive"))
    with serving({"m/cifar10/0.gz": b"archive"}) as server:
        path = fetch_known("cifar10", tmp_path, mirror=f"{server.url}/m/")
    assert path == tmp_path / "cifar10" / "0.gz"
    assert path.read_bytes() == b"archive"


def test_set_of_several_files_is_their_folder(tmp_path, monkeypatch):
    monkeypatch.setitem(KNOWN, "mnist", known(b"images", b"labels"))
    told = []
    with serving({"mnist/0.gz": b"images", "mnist/1.gz": b"labels"}) as server:
        path = fetch_known("mnist", tmp_path, mirror=server.url, tell=lambda *facts: told.append(facts))
        assert fetch_known("mnist", tmp_path) == path
        assert len(server.asked) == 2
    assert path == tmp_path / "mnist"
    assert [(path / name).read_bytes() for name in ("0.gz", "1.gz")] == [b"images", b"labels"]
    assert [facts for facts in told if facts[1] == facts[2]] == [("downloading 0.gz", 6, 6), ("downloading 1.gz", 6, 6)]


def test_second_file_that_is_refused_says_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setitem(KNOWN, "mnist", known(b"images", b"labels"))
    with serving({"mnist/0.gz": b"images"}) as server, pytest.raises(DataError, match=r"mnist/1\.gz: HTTP 404") as told:
        fetch_known("mnist", tmp_path, mirror=server.url)
    assert told.value.fix.endswith(str(tmp_path / "mnist" / "1.gz"))


def test_unknown_name_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no well-known set 'cifar'\nallowed: cifar10, cifar100, mnist"):
        fetch_known("cifar", tmp_path)
