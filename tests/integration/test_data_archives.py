"""Zips and tars of pictures as people have them: what differs from a folder of the same files."""

import bz2
import gzip
import io
import lzma
import os
import pickle
import shutil
import stat
import struct
import subprocess
import tarfile
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from iddpm.data.frame import Frame, UnusablePictureError
from iddpm.data.preparing import prepare
from iddpm.data.sources.archives.archive import is_tar_folder, tar_archive, tar_folder, zip_archive
from iddpm.data.sources.tree.folder import folder
from iddpm.runtime.errors import DataError, OutputError

KINDS = ("zip", "tar", "tar.gz")


def encoded(seed=0, suffix=".png", sides=(12, 12)):
    """A small picture of noise as the bytes of a file."""
    noise = np.random.default_rng(seed).integers(0, 256, (sides[1], sides[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, Image.registered_extensions()[suffix.lower()])
    return file.getvalue()


def write(path, files):
    """Write an archive of the kind that its name says."""
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path
    packing = path.suffix.removeprefix(".")
    with tarfile.open(path, f"w:{packing}" if packing != "tar" else "w") as archive:
        for name, content in files.items():
            add(archive, name, content)
    return path


def add(archive, name, content=b"", **fields):
    header = tarfile.TarInfo(name)
    header.size = len(content)
    for field, value in fields.items():
        setattr(header, field, value)
    archive.addfile(header, io.BytesIO(content))


def opened(path, labels="auto", **options):
    if path.is_dir():
        return tar_folder(path, path.name, labels, **options)
    return (zip_archive if path.suffix == ".zip" else tar_archive)(path, path.name, labels, **options)


def reasons(source):
    return {each.name: each.reason for each in source.listing.ignored.listed}


def damage(source):
    """What reading each picture says."""
    told = {}
    for name, place in zip(source.listing.names, source.places, strict=True):
        try:
            source.read(place, Frame(size=8))
        except UnusablePictureError as error:
            told[name] = str(error)
    return told


@pytest.mark.parametrize("kind", KINDS)
def test_dat_01_04_05_08_in_archives(tmp_path, kind):
    grey = io.BytesIO()
    Image.new("L", (9, 9), 77).save(grey, "PNG")
    files = {
        f"{name}/{name}.{suffix}": encoded(int(name), f".{suffix}") for name, suffix in (("10", "JPG"), ("2", "WEBP"))
    }
    files |= {"1/1.PNG": grey.getvalue(), "1/._1.PNG": b"hidden twin", ".DS_Store": b"\0" * 6000, "Thumbs.db": b"\0"}
    files |= {"__MACOSX/1/._1.PNG": b"twin", "notes.txt": b"not a picture"}
    result = prepare(write(tmp_path / f"pictures.{kind}", files), 8, tmp_path / "store")
    told = result.figures()
    assert (told["found"], told["used"], told["ignored"]["count"], told["damaged"]["count"]) == (8, 3, 5, 0)
    assert told["classes"] == ["1", "2", "10"]
    names = {each["name"]: each["reason"] for each in told["ignored"]["listed"]}
    assert names == {
        ".DS_Store": "hidden file",
        "1/._1.PNG": "hidden file",
        "Thumbs.db": "not a picture file (.db)",
        "__MACOSX": "hidden folder",
        "notes.txt": "not a picture file (.txt)",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_dat_06_damaged_members_are_named_and_the_rest_is_used(tmp_path, kind):
    whole = encoded(0, ".jpg", (32, 32))
    files = {"0.png": encoded(), "cut.jpg": whole[: len(whole) // 2], "empty.png": b"", "odd.png": b"no picture"}
    told = prepare(write(tmp_path / f"pictures.{kind}", files), 8, tmp_path / "store").figures()
    assert (told["found"], told["used"], told["damaged"]["count"]) == (4, 1, 3)
    found = {each["name"]: each["reason"] for each in told["damaged"]["listed"]}
    assert "truncated" in found["cut.jpg"].lower()
    assert found["empty.png"] == "empty file"
    assert found["odd.png"] == "not a picture, or damaged at its start"


def test_dat_03_members_stand_upright(tmp_path):
    image = Image.new("RGB", (40, 20), "red")
    image.paste("blue", (20, 0, 40, 20))
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    image.save(file, "JPEG", exif=exif, quality=95)
    source = opened(write(tmp_path / "a.zip", {"a.JPG": file.getvalue()}))
    pixels = source.read(source.places[0], Frame(size=20)).pixels
    assert pixels[0][:8].mean() > 230
    assert pixels[0][-8:].mean() < 25


@pytest.mark.parametrize("kind", KINDS)
def test_readers_are_safe_in_threads(tmp_path, kind):
    files = {f"{index}.png": encoded(index) for index in range(40)}
    source = opened(write(tmp_path / f"a.{kind}", files))
    frame = Frame(size=12)
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda place: source.read(place, frame).pixels, list(source.places) * 5))
    once = [source.read(place, frame).pixels for place in source.places]
    assert all(np.array_equal(one, two) for one, two in zip(read, once * 5, strict=True))


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_reader_of_a_named_file_goes_to_other_processes(tmp_path, kind):
    source = opened(write(tmp_path / f"a.{kind}", {"0.png": encoded(), "1.png": encoded(1)}))
    source.read(source.places[0], Frame(size=8))
    read, places = pickle.loads(pickle.dumps((source.read, source.places[1:2])))
    assert np.array_equal(read(places[0], Frame(size=12)).pixels, source.read(source.places[1], Frame(size=12)).pixels)


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_that_changes_after_it_was_listed_gives_no_pixels(tmp_path, kind):
    source = opened(write(tmp_path / f"a.{kind}", {"0.png": encoded()}))
    write(tmp_path / f"a.{kind}", {"1.png": encoded(1), "0.png": encoded()})
    with pytest.raises(DataError, match="has changed since it was listed"):
        damage(source)


def test_tables_within_an_archive(tmp_path):
    files = {"top/dataset.json": b'{"labels": [["00000/0.png", 1], ["00000/1.png", 0]]}'}
    files |= {f"top/00000/{index}.png": encoded(index) for index in range(2)}
    for kind in KINDS:
        path = write(tmp_path / f"a.{kind}", files)
        assert "--labels top/dataset.json uses it" in opened(path).listing.notes[0]
        listing = opened(path, "dataset.json").listing
        assert (listing.labels.tolist(), listing.classes) == ([1, 0], ("0", "1"))


def test_no_label_of_an_archive(tmp_path):
    path = write(tmp_path / "a.zip", {"0.png": encoded()})
    with pytest.raises(DataError, match=r"labels other\.csv: no such file, here or in a\.zip"):
        opened(path, "other.csv")


# zips


def test_what_a_zip_holds_beside_plain_pictures(tmp_path):
    path = write(tmp_path / "a.zip", {"0.png": encoded(), "/abs/./1.png": encoded(1), "../out.png": encoded(2)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.mkdir("empty")
        archive.writestr("stored.png", encoded(3), zipfile.ZIP_STORED)
        archive.writestr("bzip2.png", encoded(4), zipfile.ZIP_BZIP2)
        archive.writestr("lzma.png", encoded(5), zipfile.ZIP_LZMA)
        link = zipfile.ZipInfo("link.png")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "0.png")
    source = opened(path)
    assert list(source.listing.names) == ["0.png", "abs/1.png", "bzip2.png", "stored.png"]
    assert damage(source) == {}
    assert reasons(source) == {
        "../out.png": "'..' in its path",
        "link.png": "a link",
        "lzma.png": "compressed by a method that is not read here (number 14)",
    }


def test_encrypted_members_are_left_out(tmp_path):
    (tmp_path / "0.png").write_bytes(encoded())
    (tmp_path / "1.png").write_bytes(encoded(1))
    if shutil.which("zip") is None:
        pytest.skip("needs the command zip to encrypt")
    for options in (["0.png"], ["-P", "secret", "1.png"]):
        subprocess.run(["zip", "-q", "a.zip", *options], cwd=tmp_path, check=True)
    source = opened(tmp_path / "a.zip")
    assert list(source.listing.names) == ["0.png"]
    assert reasons(source) == {"1.png": "encrypted"}


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_a_member_with_a_wrong_checksum_is_damaged(tmp_path, packing):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", packing) as archive:
        archive.writestr("0.bmp", encoded(0, ".bmp"))
        archive.writestr("1.bmp", encoded(1, ".bmp"))
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[300] ^= 1
    (tmp_path / "a.zip").write_bytes(content)
    told = damage(opened(tmp_path / "a.zip"))
    assert list(told) == ["0.bmp"]
    assert "the archive is damaged" in told["0.bmp"]


def test_a_cut_zip_is_refused(tmp_path):
    path = write(tmp_path / "a.zip", {f"{index}.png": encoded(index) for index in range(4)})
    whole = path.read_bytes()
    for keep in (0, 10, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(DataError, match=r"a\.zip: not a whole zip file: its directory, at the end, is missing"):
            opened(path)
    path.write_bytes(whole[200:])
    with pytest.raises(DataError, match="does not lie where it should"):
        opened(path)


def test_a_damaged_directory_is_refused(tmp_path):
    path = write(tmp_path / "a.zip", {f"{index}.png": encoded(index) for index in range(4)})
    whole = path.read_bytes()
    at = whole.rfind(b"PK\1\2")
    path.write_bytes(whole[:at] + b"XX" + whole[at + 2 :])
    with pytest.raises(DataError, match=f"its directory is damaged at byte {at}"):
        opened(path)


def test_a_zip_behind_something_else_and_with_a_comment(tmp_path):
    path = write(tmp_path / "a.zip", {"0.png": encoded()})
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"PK\5 comment" * 100
    path.write_bytes(b"#!/bin/sh\n" * 50 + path.read_bytes())
    assert damage(opened(path)) == {}


def test_a_zip_of_the_large_kind(tmp_path):
    """Sizes and offset that stand in the extra field, as in archives above 4 GB."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive, archive.open("0.png", "w", force_zip64=True) as file:
        file.write(encoded())
    content = (tmp_path / "a.zip").read_bytes()
    at = content.rfind(b"PK\1\2")
    fields = list(struct.unpack_from("<4s6H3L5H2L", content, at))
    wide = struct.pack("<2H3Q", 1, 24, fields[9], fields[8], fields[16])
    fields[8], fields[9], fields[16], fields[11] = 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, len(wide)
    directory = struct.pack("<4s6H3L5H2L", *fields) + b"0.png" + wide
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(directory), at)
    end += struct.pack("<4sLQL", b"PK\6\7", 0, at + len(directory), 1)
    end += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    (tmp_path / "a.zip").write_bytes(content[:at] + directory + end)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("0.png") == encoded()
    assert damage(opened(tmp_path / "a.zip")) == {}


def test_names_of_old_and_foreign_tools(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("Käse/é.png", encoded())
        windows = zipfile.ZipInfo("猫/0.png")
        windows.create_system = 0
        archive.writestr(windows, encoded(1))
    content = (tmp_path / "a.zip").read_bytes().replace("猫/0.png".encode(), b"\x82at\\0.png")
    (tmp_path / "a.zip").write_bytes(content)
    assert list(opened(tmp_path / "a.zip").listing.names) == ["Käse/é.png", "éat/0.png"]


def test_an_empty_zip_and_none(tmp_path):
    with pytest.raises(DataError, match="no picture file there"):
        opened(write(tmp_path / "a.zip", {}))
    with pytest.raises(DataError, match="No such file"):
        opened(tmp_path / "gone.zip")


# tars


def test_what_a_tar_holds_beside_plain_pictures(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "./a", type=tarfile.DIRTYPE)
        add(archive, "./a/0.png", encoded())
        add(archive, "/abs/1.png", encoded(1))
        add(archive, "soft.png", type=tarfile.SYMTYPE, linkname="a/0.png")
        add(archive, "hard.png", type=tarfile.LNKTYPE, linkname="a/0.png")
        add(archive, "pipe.png", type=tarfile.FIFOTYPE)
        add(archive, "n" * 150 + "/2.png", encoded(2))
        add(archive, "a/0.png", encoded(5))
    source = opened(tmp_path / "a.tar")
    assert list(source.listing.names) == ["a/0.png", "abs/1.png", "n" * 150 + "/2.png"]
    assert np.array_equal(source.read(source.places[0], Frame(size=12)).pixels, pixels(5))
    assert reasons(source) == {
        "a/0.png": "a later member has the same name",
        "hard.png": "a link",
        "pipe.png": "not a regular file",
        "soft.png": "a link",
    }


def pixels(seed):
    return np.asarray(Image.open(io.BytesIO(encoded(seed)))).transpose(2, 0, 1)


def test_sparse_members_are_left_out(tmp_path):
    with (tmp_path / "hole.png").open("wb") as file:
        file.write(b"x")
        file.truncate(1 << 20)
    (tmp_path / "0.png").write_bytes(encoded())
    done = subprocess.run(["tar", "--sparse", "-cf", "a.tar", "hole.png", "0.png"], cwd=tmp_path, check=False)
    if done.returncode or (tmp_path / "a.tar").stat().st_size > 1 << 19:
        pytest.skip("needs GNU tar and a file system with holes")
    assert reasons(opened(tmp_path / "a.tar")) == {"hole.png": "a sparse member"}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_every_form(tmp_path, form):
    with tarfile.open(tmp_path / "a.tar", "w", format=form) as archive:
        add(archive, "Käse/" + "x" * 90 + "/0.png", encoded(), mtime=1.5)
    source = opened(tmp_path / "a.tar")
    assert list(source.listing.names) == ["Käse/" + "x" * 90 + "/0.png"]
    assert damage(source) == {}


def test_names_in_any_bytes(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        add(archive, "caf\udce9.png", encoded())
    assert list(opened(tmp_path / "a.tar").listing.names) == ["caf\\xe9.png"]


def test_a_cut_tar_is_refused_wherever_it_is_cut(tmp_path):
    path = write(tmp_path / "a.tar", {f"{index}.png": encoded(index) for index in range(3)})
    whole = path.read_bytes()
    ends = len(whole.rstrip(b"\0"))
    for keep in (0, 100, 512, 700, 1024, 1536, 2048, ends - 1, ends):
        path.write_bytes(whole[:keep])
        with pytest.raises(DataError, match=r"a\.tar: not a whole tar file: damaged or cut at byte \d+"):
            opened(path)


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path):
    path = write(tmp_path / "a.tar", {f"{index}.png": encoded(index) for index in range(3)})
    content = bytearray(path.read_bytes())
    second = content.find(b"1.png")
    content[second] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"damaged or cut at byte {second}"):
        opened(path)


def test_joined_tars_are_not_used_in_part_without_a_word(tmp_path):
    one, two = (write(tmp_path / f"{index}.tar", {f"{index}.png": encoded(index)}) for index in range(2))
    one.write_bytes(one.read_bytes() + two.read_bytes())
    with pytest.raises(DataError, match="another archive follows its end, at byte 10240"):
        opened(one)


def test_no_tar_at_all(tmp_path):
    (tmp_path / "a.tar").write_bytes(os.urandom(5000))
    with pytest.raises(DataError, match="damaged or cut at byte 0"):
        opened(tmp_path / "a.tar")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_tars_are_unpacked_whatever_they_are_called(tmp_path, pack):
    plain = write(tmp_path / "a.tar", {"x/0.png": encoded(), "y/1.png": encoded(1)})
    (tmp_path / "scratch").mkdir()
    (tmp_path / "b.tar").write_bytes(pack(plain.read_bytes()))
    told = []
    source = opened(tmp_path / "b.tar", scratch=tmp_path / "scratch", tell=lambda *each: told.append(each))
    assert (source.listing.classes, damage(source)) == (("x", "y"), {})
    assert list((tmp_path / "scratch").iterdir()) == []
    size = (tmp_path / "b.tar").stat().st_size
    assert told[-1] == ("unpacking", size, size)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_tar_that_is_cut_or_damaged_is_refused(tmp_path, pack):
    packed = pack(write(tmp_path / "a.tar", {f"{index}.png": encoded(index) for index in range(9)}).read_bytes())
    for content in (packed[: len(packed) // 2], packed[:200] + b"\0" * 40 + packed[240:]):
        (tmp_path / "b.tar.xx").write_bytes(content)
        with pytest.raises(
            DataError, match=r"b\.tar\.xx: (damaged or cut: it can be unpacked to byte|not a whole tar)"
        ):
            opened(tmp_path / "b.tar.xx")


def test_what_cannot_be_unpacked_here(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"\x28\xb5\x2f\xfd" + b"\0" * 600)
    with pytest.raises(DataError, match="compressed with zstd"):
        opened(tmp_path / "a.tar")
    packed = write(tmp_path / "b.tar.gz", {"0.png": encoded()})
    with pytest.raises(OutputError, match="cannot unpack"):
        opened(packed, scratch=tmp_path / "gone")


# tars of tars, and folders of tars


def test_a_tar_of_tars_is_a_class_for_each(tmp_path):
    inner = {f"n{number}.tar": {f"n{number}_{index}.JPEG": encoded(index) for index in range(2)} for number in (10, 9)}
    files = {name: write(tmp_path / name, held).read_bytes() for name, held in inner.items()}
    source = opened(write(tmp_path / "train.tar", files))
    assert list(source.listing.names) == ["n9/n9_0.JPEG", "n9/n9_1.JPEG", "n10/n10_0.JPEG", "n10/n10_1.JPEG"]
    assert (source.listing.classes, damage(source)) == (("n9", "n10"), {})


def test_a_cut_tar_within_a_tar_is_refused(tmp_path):
    inner = write(tmp_path / "n1.tar", {f"{index}.png": encoded(index) for index in range(3)}).read_bytes()
    with pytest.raises(DataError, match=r"train\.tar: n1\.tar: not a whole tar file: damaged or cut at byte"):
        opened(write(tmp_path / "train.tar", {"n1.tar": inner[:1800], "n2.tar": inner}))


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_a_folder_of_tars_is_a_class_for_each(tmp_path, suffix):
    (tmp_path / "set").mkdir()
    for name, count in (("cat", 2), ("dog", 1)):
        write(tmp_path / "set" / f"{name}.{suffix}", {f"{index}.png": encoded(index) for index in range(count)})
    (tmp_path / "set" / "readme.txt").write_text("not an archive")
    assert is_tar_folder(tmp_path / "set")
    source = opened(tmp_path / "set")
    assert list(source.listing.names) == ["cat/0.png", "cat/1.png", "dog/0.png"]
    assert (source.listing.classes, damage(source)) == (("cat", "dog"), {})
    assert reasons(source) == {"readme.txt": "not a picture file (.txt)"}


def test_a_folder_with_pictures_is_no_folder_of_tars(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.png").write_bytes(encoded())
    write(tmp_path / "backup.tar", {"0.png": encoded()})
    assert not is_tar_folder(tmp_path)
    assert reasons(folder(tmp_path, "set")) == {"backup.tar": "not a picture file (.tar)"}


def test_the_fingerprint_of_an_archive_is_its_state(tmp_path):
    path = write(tmp_path / "a.zip", {"0.png": encoded()})
    seen = [opened(path).listing.fingerprint, opened(path, "none").listing.fingerprint]
    os.utime(path, ns=(5, 5))
    seen.append(opened(path).listing.fingerprint)
    assert len(set(seen)) == 3
    assert opened(path).listing.fingerprint == seen[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_tells_what_is_rewritten_in_place_from_what_it_was(tmp_path, kind):
    prints = []
    for seed in (0, 1):
        path = write(tmp_path / f"a.{kind}", {"0.bmp": encoded(seed, ".bmp")})
        with path.open("ab") as file:
            file.write(b"")
        os.utime(path, ns=(0, 0))
        prints.append(opened(path).listing.fingerprint)
    assert prints[0] != prints[1]


@pytest.mark.slow
def test_a_zip_of_more_members_than_its_end_can_count(tmp_path):
    """Writers without zip64 count modulo 65,536."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for index in range(65_536 + 100):
            archive.writestr(f"{index}.png", b"")
    content = (tmp_path / "a.zip").read_bytes()
    *_, size, start = struct.unpack_from("<4sQ2H2L4Q", content, content.rfind(b"PK\6\6"))
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 100, 100, size, start, 0)
    (tmp_path / "a.zip").write_bytes(content[: start + size] + end)
    assert len(zipfile.ZipFile(tmp_path / "a.zip").infolist()) == 65_636
    assert len(opened(tmp_path / "a.zip").listing.names) == 65_636


@pytest.mark.parametrize("count", [1, 3])
def test_a_zip_that_does_not_hold_what_its_end_counts_is_refused(tmp_path, count):
    path = write(tmp_path / "a.zip", {"0.png": encoded(), "1.png": encoded(1)})
    content = bytearray(path.read_bytes())
    struct.pack_into("<2H", content, len(content) - 14, count, count)
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"its directory holds 2 members, its end says {count}"):
        opened(path)


def test_a_member_that_reaches_beyond_the_archive_is_damaged(tmp_path):
    path = write(tmp_path / "a.zip", {"0.png": encoded(), "1.png": encoded(1)})
    content = bytearray(path.read_bytes())
    struct.pack_into("<L", content, content.find(b"PK\1\2") + 20, 0xFFFFFFF0)
    path.write_bytes(content)
    assert damage(opened(path)) == {"0.png": "the archive ends within it"}


def test_an_offset_that_no_file_has_is_refused(tmp_path):
    path = write(tmp_path / "a.zip", {"0.png": encoded()})
    content = path.read_bytes()
    at = content.rfind(b"PK\1\2")
    fields = list(struct.unpack_from("<4s6H3L5H2L", content, at))
    fields[16], fields[11] = 0xFFFFFFFF, 12
    directory = struct.pack("<4s6H3L5H2L", *fields) + b"0.png" + struct.pack("<2HQ", 1, 8, (1 << 64) - 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(directory), at, 0)
    path.write_bytes(content[:at] + directory + end)
    with pytest.raises(DataError, match=f"its directory is damaged at byte {at}"):
        opened(path)


def test_a_zip_with_endless_paths_takes_little_memory(tmp_path):
    path = write(tmp_path / "a.zip", {"a/" * 15_000 + "0.png": b"", "b/" * 15_000 + "0.png": b"", "0.png": encoded()})
    tracemalloc.start()
    source = opened(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(source.listing.names) == ["0.png"]
    assert source.listing.ignored.count == 2
    assert peak < 4 << 20
