import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from http_files import refusing, serving
from iddpm.data.remote import download
from iddpm.data.remote.download import Remote, fetch
from iddpm.runtime.errors import ConfigError, DataError, OutputError

CONTENT = random.Random(0).randbytes(300_000)
fetch_at_once = partial(fetch, pause=0.0)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server():
    with serving({"set.bin": CONTENT, "web": b"<html>log in</html>"}) as running:
        yield running


def remote(*urls, name="set.bin", content=CONTENT, algorithm="sha256"):
    digest = f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"
    return Remote(name=name, urls=urls, bytes=len(content), digest=digest)


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_file_comes_whole_and_alone_into_a_new_folder(server, tmp_path, algorithm):
    path = fetch(remote(f"{server.url}/set.bin", algorithm=algorithm), tmp_path / "a" / "b")
    assert path == tmp_path / "a" / "b" / "set.bin"
    assert path.read_bytes() == CONTENT
    assert visible(path.parent) == ["set.bin"]


def test_progress_is_told_in_bytes_from_nothing_to_all(server, tmp_path):
    told = []
    fetch(remote(f"{server.url}/set.bin"), tmp_path, tell=lambda *facts: told.append(facts))
    assert {(task, total) for task, _, total in told} == {("downloading set.bin", 300_000)}
    done = [each for _, each, _ in told]
    assert (done[0], done[-1]) == (0, 300_000)
    assert done == sorted(done)


def test_file_that_is_there_needs_no_network(server, tmp_path):
    fetch(remote(f"{server.url}/set.bin"), tmp_path)
    assert fetch(remote(refusing()), tmp_path).read_bytes() == CONTENT
    assert len(server.asked) == 1


def test_digest_is_checked_once(server, tmp_path, monkeypatch):
    file = remote(f"{server.url}/set.bin")
    fetch(file, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(download, "_wrong_digest", lambda *_: pytest.fail("checked again"))
        fetch(file, tmp_path)
    (tmp_path / "set.bin").write_bytes(CONTENT[::-1])
    os.utime(tmp_path / "set.bin", ns=(1, 1))
    assert fetch(file, tmp_path).read_bytes() == CONTENT


def test_file_put_there_by_hand_is_taken(tmp_path):
    (tmp_path / "set.bin").write_bytes(CONTENT)
    assert fetch(remote(refusing()), tmp_path).read_bytes() == CONTENT


def test_wrong_file_put_there_by_hand_is_named_and_kept(tmp_path):
    (tmp_path / "set.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match="the one that is there has 299999 bytes, not 300000"):
        fetch(remote(refusing()), tmp_path)
    assert (tmp_path / "set.bin").read_bytes() == CONTENT[:-1]


def test_cut_connection_goes_on_where_it_was(server, tmp_path):
    server.cuts = [100_000, 50_000]
    told = []
    assert fetch_at_once(remote(f"{server.url}/set.bin"), tmp_path, tell=lambda *facts: told.append(facts[1]))
    assert (tmp_path / "set.bin").read_bytes() == CONTENT
    assert [span for _, span in server.asked] == [None, "bytes=100000-", "bytes=150000-"]
    assert server.sent == 300_000
    assert told == sorted(told)


def test_next_call_goes_on_with_the_part_of_the_last(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(CONTENT[:120_000])
    told = []
    fetch(remote(f"{server.url}/set.bin"), tmp_path, tell=lambda *facts: told.append(facts[1]))
    assert (tmp_path / "set.bin").read_bytes() == CONTENT
    assert server.sent == 180_000
    assert told[0] == 120_000


def test_whole_part_is_only_checked(tmp_path):
    (tmp_path / "set.bin.part").write_bytes(CONTENT)
    assert fetch(remote(refusing()), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("part", [CONTENT[:-1][::-1], CONTENT[::-1], CONTENT + b"more"], ids=["short", "full", "long"])
def test_part_of_another_file_is_replaced(server, tmp_path, part):
    (tmp_path / "set.bin.part").write_bytes(part)
    assert fetch(remote(f"{server.url}/set.bin"), tmp_path).read_bytes() == CONTENT


def test_server_without_ranges_starts_again(server, tmp_path):
    server.ranges, server.cuts = False, [100_000]
    assert fetch_at_once(remote(f"{server.url}/set.bin"), tmp_path).read_bytes() == CONTENT
    assert server.sent == 400_000


def test_server_without_ranges_that_always_cuts_is_given_up(server, tmp_path):
    server.ranges, server.cuts = False, [100_000] * 20
    with pytest.raises(DataError, match=r"cut off after 100000 of 300000 bytes \(5 tries\)"):
        fetch_at_once(remote(f"{server.url}/set.bin"), tmp_path)
    assert len(server.asked) == 6


def test_range_that_does_not_fit_starts_again(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(CONTENT[:1000])
    server.content_range = "bytes 0-299999/300000"
    assert fetch(remote(f"{server.url}/set.bin"), tmp_path).read_bytes() == CONTENT
    assert [span for _, span in server.asked] == ["bytes=1000-", None]


def test_refused_range_starts_again(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(CONTENT[:1000])
    server.statuses = [416]
    assert fetch(remote(f"{server.url}/set.bin"), tmp_path).read_bytes() == CONTENT
    assert [span for _, span in server.asked] == ["bytes=1000-", None]


def test_busy_server_is_asked_again(server, tmp_path):
    server.statuses = [503, 500, 429]
    assert fetch_at_once(remote(f"{server.url}/set.bin"), tmp_path).read_bytes() == CONTENT


def test_answer_without_a_length_is_counted(server, tmp_path):
    server.lengths, server.cuts = {"set.bin": None}, [1000]
    assert fetch_at_once(remote(f"{server.url}/set.bin"), tmp_path).read_bytes() == CONTENT
    assert server.sent == 300_000


def test_redirect_is_followed_with_its_range(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(CONTENT[:1000])
    server.redirects = {"old": f"{server.url}/set.bin"}
    assert fetch(remote(f"{server.url}/old"), tmp_path).read_bytes() == CONTENT
    assert server.asked == [("/old", "bytes=1000-"), ("/set.bin", "bytes=1000-")]


def test_second_place_is_tried_and_goes_on_with_the_part(server, tmp_path):
    with serving({"set.bin": CONTENT}) as weak:
        weak.cuts, weak.statuses = [1000], [0, 404]
        fetch_at_once(remote(f"{weak.url}/set.bin", f"{server.url}/set.bin"), tmp_path)
    assert (tmp_path / "set.bin").read_bytes() == CONTENT
    assert server.sent == 299_000


def test_mirror_takes_the_place_of_the_urls(server, tmp_path):
    assert fetch(remote(refusing()), tmp_path, mirror=f"{server.url}/").read_bytes() == CONTENT
    assert server.asked == [("/set.bin", None)]


def test_mirror_can_be_a_folder(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "set.bin").write_bytes(CONTENT)
    (tmp_path / "set.bin.part").write_bytes(CONTENT[:1000])
    assert fetch(remote(refusing()), tmp_path, mirror=(tmp_path / "shared").as_uri()).read_bytes() == CONTENT


@pytest.mark.parametrize("mirror", ["shared", "127.0.0.1:8765", "ftp://files"])
def test_mirror_that_is_no_url_is_refused(tmp_path, mirror):
    with pytest.raises(ConfigError, match=rf"{mirror}/set\.bin is not a URL"):
        fetch(remote(refusing()), tmp_path, mirror=mirror)


def test_proxy_is_honoured(server, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "")
    assert fetch(remote("http://nowhere.invalid/set.bin"), tmp_path).read_bytes() == CONTENT
    assert server.asked == [("http://nowhere.invalid/set.bin", None)]


def failure(tmp_path, *urls, **options):
    """The error of a download that fails: two lines, with the way out, and nothing under the name."""
    with pytest.raises((DataError, OutputError)) as caught:
        fetch_at_once(remote(*urls), tmp_path, **options)
    assert "\n" not in caught.value.what + caught.value.fix
    assert f"or put the file there by hand: {tmp_path / 'set.bin'}" in caught.value.fix
    assert not (tmp_path / "set.bin").exists()
    return caught.value.what


def test_refused_connection_is_one_line(tmp_path):
    url = refusing()
    assert failure(tmp_path, url) == f"cannot download set.bin: {url}: connection refused"
    assert visible(tmp_path) == []


def test_unknown_host_is_one_line(tmp_path):
    assert "nowhere.invalid/set.bin: host not found" in failure(tmp_path, "http://nowhere.invalid/set.bin")


def test_missing_file_is_one_line_that_names_every_place(server, tmp_path):
    told = failure(tmp_path, f"{server.url}/gone", f"{server.url}/lost")
    assert told == (
        f"cannot download set.bin: {server.url}/gone: HTTP 404 Not Found; {server.url}/lost: HTTP 404 Not Found"
    )
    assert len(server.asked) == 2


def test_wrong_content_is_one_line_with_both_digests_and_leaves_no_part(server, tmp_path):
    server.files["set.bin"] = CONTENT[::-1]
    found, expected = (hashlib.sha256(each).hexdigest() for each in (CONTENT[::-1], CONTENT))
    told = failure(tmp_path, f"{server.url}/set.bin")
    assert f"{server.url}/set.bin: another file, it has sha256 {found}, not {expected}" in told
    assert list(tmp_path.iterdir()) == []


def test_cut_file_is_one_line(server, tmp_path):
    server.files["set.bin"] = CONTENT[:1000]
    assert "it sends 1000 bytes, not 300000" in failure(tmp_path, f"{server.url}/set.bin")


def test_cut_file_without_a_length_is_one_line(server, tmp_path):
    server.files["set.bin"], server.lengths = CONTENT[:1000], {"set.bin": None}
    assert "cut off after 1000 of 300000 bytes" in failure(tmp_path, f"{server.url}/set.bin")


def test_longer_file_without_a_length_is_one_line(server, tmp_path):
    server.files["set.bin"], server.lengths = CONTENT + b"more", {"set.bin": None}
    assert "it sends more than 300000 bytes" in failure(tmp_path, f"{server.url}/set.bin")


def test_page_of_another_kind_is_one_line(server, tmp_path):
    assert "it sends 19 bytes, not 300000" in failure(tmp_path, f"{server.url}/web")


def test_silent_server_is_given_up_and_its_part_kept(server, tmp_path):
    server.silent_after, server.piece = 1000, 1000
    told = failure(tmp_path, f"{server.url}/set.bin", timeout=0.05)
    assert "no answer within 0.05 s (5 tries)" in told
    assert (tmp_path / "set.bin.part").stat().st_size >= 1000


def test_full_disk_is_one_line(server, tmp_path):
    os.symlink("/dev/full", tmp_path / "set.bin.part")
    told = failure(tmp_path, f"{server.url}/set.bin")
    assert told == f"cannot write {tmp_path / 'set.bin'}: No space left on device"


def test_folder_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"cannot write .*file/set\.bin"):
        fetch(remote(refusing()), tmp_path / "file")


def test_nothing_is_under_the_name_before_the_check(server, tmp_path, monkeypatch):
    seen = []
    check = download._wrong_digest

    def watched(file, opened):
        seen.append(visible(tmp_path))
        return check(file, opened)

    monkeypatch.setattr(download, "_wrong_digest", watched)
    fetch(remote(f"{server.url}/set.bin"), tmp_path, tell=lambda *_: seen.append(visible(tmp_path)))
    assert len(seen) > 2
    assert {name for names in seen for name in names} == {"set.bin.part"}


def test_interrupt_leaves_a_part_that_is_gone_on_with(server, tmp_path):
    server.piece = 10_000

    def interrupt(_, done, __):
        if done >= 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(remote(f"{server.url}/set.bin"), tmp_path, tell=interrupt)
    there = (tmp_path / "set.bin.part").stat().st_size
    assert there >= 100_000
    fetch(remote(f"{server.url}/set.bin"), tmp_path)
    assert server.asked[1] == ("/set.bin", f"bytes={there}-")


def test_two_threads_download_once(server, tmp_path):
    server.piece, server.pause = 30_000, 0.02
    file, told = remote(f"{server.url}/set.bin"), []
    threads = [
        threading.Thread(target=fetch, args=(file, tmp_path), kwargs={"tell": lambda *facts: told.append(facts)})
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.sent == 300_000
    assert visible(tmp_path) == ["set.bin"]
    assert (tmp_path / "set.bin").read_bytes() == CONTENT


def start(file, folder):
    code = f"""
from pathlib import Path
from iddpm.data.remote.download import Remote, fetch
fetch({file!r}, Path({str(folder)!r}), pause=0.0)
"""
    source = str(Path(download.__file__).parents[2])
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": source})


def wait_for(folder, size):
    for _ in range(1000):
        part = folder / "set.bin.part"
        if part.exists() and part.stat().st_size >= size:
            return
        time.sleep(0.01)
    pytest.fail("the other process does not download")


def test_killed_process_is_gone_on_from_by_the_one_that_waits(server, tmp_path):
    server.piece, server.pause = 10_000, 0.05
    file = remote(f"{server.url}/set.bin")
    first = start(file, tmp_path)
    wait_for(tmp_path, 50_000)
    told = []
    second = threading.Thread(target=fetch, args=(file, tmp_path), kwargs={"tell": lambda *facts: told.append(facts)})
    second.start()
    while not told:
        time.sleep(0.01)
    server.pause = 0.0
    first.send_signal(signal.SIGKILL)
    first.wait()
    second.join()
    assert told[0][1] >= 50_000
    assert (tmp_path / "set.bin").read_bytes() == CONTENT
    assert [span is None for _, span in server.asked] == [True, False]
    assert visible(tmp_path) == ["set.bin"]
