import io
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import lmdb
import numpy as np
import pytest
from PIL import Image

from iddpm.data.frame import Frame, UnusablePictureError
from iddpm.data.sources import lsun as module
from iddpm.data.sources.lsun import is_lsun, lsun
from iddpm.runtime.errors import ConfigError, DataError

FRAME = Frame(size=8)


def picture(level, kind="webp"):
    file = io.BytesIO()
    Image.new("RGB", (12, 10), (level, level, level)).save(file, kind, lossless=True)
    return file.getvalue()


def write(folder, values):
    """An LMDB as LSUN's are: keys in bytes, encoded pictures under them."""
    folder.mkdir(parents=True)
    with lmdb.open(str(folder), map_size=1 << 22) as environment, environment.begin(write=True) as transaction:
        for key, value in values.items():
            transaction.put(key, value)
    return folder


def bedroom(folder, count=3):
    return write(folder, {f"{index:02d}".encode(): picture(10 * index) for index in range(count)})


@pytest.fixture
def scenes(tmp_path):
    """Two categories, one with a split, and LSUN's test set of all."""
    for name, count in (("bedroom_train", 4), ("bedroom_val", 2), ("church_outdoor_train", 3), ("test", 2)):
        bedroom(tmp_path / f"{name}_lmdb", count)
    return tmp_path


def test_lmdb_and_folders_of_them_are_told_from_others(scenes, tmp_path_factory):
    assert is_lsun(scenes)
    assert is_lsun(scenes / "test_lmdb")
    assert not is_lsun(scenes / "missing")
    assert not is_lsun(scenes / "test_lmdb" / "data.mdb")
    assert not is_lsun(tmp_path_factory.mktemp("empty"))


def test_one_category_has_no_labels_and_its_keys_as_names(tmp_path):
    source = lsun(bedroom(tmp_path / "bedroom_train_lmdb"), "rooms")
    listing = source.listing
    assert (listing.source, listing.kind) == ("rooms", "lsun")
    assert list(listing.names) == ["00", "01", "02"]
    assert (listing.labels, listing.classes, listing.held_out, listing.split_rule) == (None, (), None, None)
    assert [source.read(place, FRAME).pixels[0, 0, 0] for place in source.places] == [0, 10, 20]
    assert source.read(source.places[0], FRAME).width == 12
    assert source.pool == "either"


@pytest.mark.parametrize("kind", ["webp", "jpeg", "png"])
def test_any_kind_of_picture_is_decoded(tmp_path, kind):
    source = lsun(write(tmp_path / "any", {b"key": picture(200, kind)}), "any")
    assert source.read("key", FRAME).pixels.mean() == pytest.approx(200, abs=1)


def test_several_categories_are_classes_and_their_val_is_held_out(scenes):
    listing = lsun(scenes, "scenes").listing
    assert listing.classes == ("bedroom", "church_outdoor")
    assert listing.labels.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert listing.held_out.tolist() == [False] * 4 + [True] * 2 + [False] * 3
    assert listing.split_rule.startswith("by name: trains on _train_lmdb")
    assert listing.names[3:6] == ["bedroom_train_lmdb/03", "bedroom_val_lmdb/00", "bedroom_val_lmdb/01"]


def test_test_set_of_all_categories_is_left_out_with_its_reason(scenes):
    ignored = lsun(scenes, "scenes").listing.ignored
    assert ignored.count == 2
    assert [(each.name, each.reason) for each in ignored.listed] == [("test_lmdb", "of all categories, without labels")]


def test_val_of_a_category_that_is_not_trained_on_is_left_out(scenes):
    bedroom(scenes / "tower_val_lmdb", 5)
    listing = lsun(scenes, "scenes").listing
    assert "tower" not in listing.classes
    assert listing.ignored.count == 7
    assert listing.ignored.listed[1].reason == "no training pictures of its category"


def test_test_set_alone_is_used_and_chosen_from_by_content(tmp_path):
    listing = lsun(bedroom(tmp_path / "test_lmdb"), "test").listing
    assert (len(listing.names), listing.held_out, listing.ignored.count) == (3, None, 0)


def test_val_sets_alone_are_used_without_a_split(tmp_path):
    for name in ("a_val_lmdb", "b_val_lmdb", "test_lmdb"):
        bedroom(tmp_path / name)
    listing = lsun(tmp_path, "vals").listing
    assert (listing.classes, listing.held_out, listing.ignored.count) == (("a", "b"), None, 3)


def test_categories_come_in_natural_order(tmp_path):
    for name in ("room10", "room9"):
        bedroom(tmp_path / name, 1)
    listing = lsun(tmp_path, "rooms").listing
    assert listing.classes == ("room9", "room10")
    assert list(listing.names) == ["room9/00", "room10/00"]


def test_labels_can_be_left_out_or_asked_for(scenes, tmp_path):
    without = lsun(scenes, "scenes", "none").listing
    assert (without.labels, without.classes, without.held_out.sum()) == (None, (), 2)
    asked = lsun(scenes / "bedroom_train_lmdb", "one", "folders").listing
    assert (asked.classes, asked.labels.tolist()) == (("bedroom",), [0, 0, 0, 0])
    assert without.fingerprint != lsun(scenes, "scenes").listing.fingerprint
    with pytest.raises(ConfigError, match="labels=prefix: scenes holds LMDBs\nallowed: auto, folders, none"):
        lsun(scenes, "scenes", "prefix")
    with pytest.raises(DataError, match="its name says no category"):
        lsun(scenes / "test_lmdb", "test", "folders")


def test_keys_are_kept_byte_by_byte(tmp_path):
    keys = [b"\x00zero", b"a/b", "schön".encode(), b"\xff\xfe", b"line\nbreak"]
    source = lsun(write(tmp_path / "odd", {key: picture(9) for key in keys}), "odd")
    assert [place.encode("utf-8", "surrogateescape") for place in source.places] == sorted(keys)
    assert all(source.read(place, FRAME).pixels.max() == 9 for place in source.places)
    assert "\\xff\\xfe" in source.listing.names
    assert "\n".join(source.listing.names).encode()


def test_keys_of_several_may_hold_slashes(tmp_path):
    write(tmp_path / "a", {b"x/y": picture(7)})
    source = lsun(tmp_path, "one")
    assert list(source.places) == ["a/x/y"]
    assert source.read("a/x/y", FRAME).pixels.max() == 7


def test_damaged_value_is_one_picture(tmp_path):
    whole = picture(50)
    values = {b"a": whole, b"b": whole[: len(whole) // 2], b"c": b"", b"d": b"text", b"e": whole}
    source = lsun(write(tmp_path / "mixed", values), "mixed")
    for place, reason in (("b", "."), ("c", "empty"), ("d", "not a picture")):
        with pytest.raises(UnusablePictureError, match=reason):
            source.read(place, FRAME)
    assert source.read("e", FRAME).pixels.max() == 50


def test_what_is_lost_or_changed_after_it_was_listed_ends_the_run(tmp_path):
    source = lsun(bedroom(tmp_path / "one"), "one")
    with pytest.raises(DataError, match=r"one/data\.mdb has changed since it was listed"):
        source.read("gone", FRAME)
    os.utime(tmp_path / "one" / "data.mdb", ns=(1, 1))
    with pytest.raises(DataError, match=r"data\.mdb has changed since it was listed"):
        source.read("00", FRAME)
    (tmp_path / "one").rename(tmp_path / "unmounted")
    with pytest.raises(DataError, match=r"data\.mdb: No such file.*\n.*the same command goes on from there"):
        source.read("00", FRAME)


def test_an_error_of_lmdb_that_is_no_damage_ends_the_run(tmp_path, monkeypatch):
    source = lsun(bedroom(tmp_path / "one"), "one")

    def refused(path):
        raise lmdb.ReadersFullError("no slot for a reader")

    monkeypatch.setattr(module, "_environment", refused)
    with pytest.raises(DataError, match=r"data\.mdb: no slot for a reader"):
        source.read("00", FRAME)


def test_fingerprint_tells_copies_of_equal_size_and_time_apart(tmp_path):
    prints = []
    for name, level in (("a", 0), ("b", 100)):
        write(tmp_path / name / "one", {b"0": picture(level)})
        os.utime(tmp_path / name / "one" / "data.mdb", ns=(0, 0))
        prints.append(lsun(tmp_path / name / "one", "x").listing.fingerprint)
    assert (tmp_path / "a/one/data.mdb").stat().st_size == (tmp_path / "b/one/data.mdb").stat().st_size
    assert prints[0] != prints[1]


def test_validation_is_a_part_and_odd_names_can_be_shown(tmp_path):
    for name in ("a\x1b_train_lmdb", "a\x1b_validation_lmdb", "b_train_lmdb"):
        bedroom(tmp_path / name, 1)
    listing = lsun(tmp_path, "rooms").listing
    assert (listing.classes, listing.held_out.tolist()) == (("a\\x1b", "b"), [False, True, False])


def test_empty_lmdb_is_refused(tmp_path):
    with pytest.raises(DataError, match="rooms: no picture in its LMDB"):
        lsun(write(tmp_path / "empty", {}), "rooms")


def test_empty_lmdb_beside_another_counts_nothing(tmp_path):
    write(tmp_path / "kitchen_train_lmdb", {})
    bedroom(tmp_path / "bedroom_train_lmdb")
    listing = lsun(tmp_path, "rooms").listing
    assert (len(listing.names), listing.labels) == (3, None)


DAMAGE = {
    "cut": lambda file, size: file.truncate(size - 4096),
    "nothing": lambda file, size: file.truncate(0),
    "start": lambda file, size: file.write(os.urandom(8192)),
    "pages": lambda file, size: (file.seek(8192), file.write(bytes(size - 8192))),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_file_is_one_line(tmp_path, damage):
    folder = bedroom(tmp_path / "bedroom_train_lmdb", 60)
    with (folder / "data.mdb").open("r+b") as file:
        damage(file, (folder / "data.mdb").stat().st_size)
    with pytest.raises(DataError, match=r"rooms: .*data\.mdb is no whole LMDB: .+\nunpack or copy it again$") as told:
        lsun(tmp_path, "rooms")
    assert "\n" not in told.value.what


def test_nothing_is_written_beside_it(tmp_path):
    folder = bedroom(tmp_path / "one")
    (folder / "lock.mdb").unlink()
    folder.chmod(0o555)
    source = lsun(folder, "one")
    source.read("00", FRAME)
    assert [path.name for path in folder.iterdir()] == ["data.mdb"]


def test_reader_is_small_and_reads_from_many_threads(scenes):
    source = lsun(scenes, "scenes")
    assert len(pickle.dumps(source.read)) < 1000
    read = pickle.loads(pickle.dumps(source.read))
    found, places = {}, list(source.places) * 20

    def work(part):
        for index in range(part, len(places), 4):
            found[index] = int(read(places[index], FRAME).pixels[0, 0, 0])

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(len(places))] == [0, 10, 20, 30, 0, 10, 0, 10, 20] * 20


def test_reader_works_in_a_forked_process(tmp_path):
    folder = bedroom(tmp_path / "one")
    code = f"""
import os
from pathlib import Path
from iddpm.data.frame import Frame
from iddpm.data.sources.lsun import lsun
source = lsun(Path({str(folder)!r}), "one")
source.read("01", Frame(size=8))
child = os.fork()
if child == 0:
    os._exit(int(source.read("02", Frame(size=8)).pixels.max()))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 20
assert source.read("02", Frame(size=8)).pixels.max() == 20
"""
    source = str(Path(module.__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": source}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_fingerprint_follows_the_content_and_not_the_place(tmp_path):
    one = bedroom(tmp_path / "a" / "one")
    before = lsun(one, "x").listing.fingerprint
    assert lsun(one, "y").listing.fingerprint == before
    one.rename(tmp_path / "one")
    assert lsun(tmp_path / "one", "x").listing.fingerprint == before
    os.utime(tmp_path / "one" / "data.mdb")
    assert lsun(tmp_path / "one", "x").listing.fingerprint != before


def test_missing_package_says_what_to_install(tmp_path, monkeypatch):
    folder = bedroom(tmp_path / "one")
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(DataError, match=r'need the package lmdb\npip install "iddpm\[data\]"'):
        lsun(folder, "one")


def test_keys_of_many_pictures_take_little_memory(tmp_path):
    with lmdb.open(str(tmp_path / "many"), map_size=1 << 26) as environment, environment.begin(write=True) as writing:
        for index in range(50_000):
            writing.put(f"{index:040d}".encode(), b"value")
    source = lsun(tmp_path / "many", "many")
    assert source.listing.names is source.places
    assert len(pickle.dumps(source.places)) < 50_000 * 50
    assert np.array_equal(source.places[49_998:], [f"{index:040d}" for index in (49_998, 49_999)])
