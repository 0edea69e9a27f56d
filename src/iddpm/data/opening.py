"""A source by its name or path: which kind it is, and its listing. No picture is read."""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from iddpm.data.listing import Source, fingerprint
from iddpm.data.remote.known_sets import KNOWN, fetch_known
from iddpm.data.sources.archives.archive import is_tar_folder, tar_archive, tar_folder, zip_archive
from iddpm.data.sources.archives.tar_index import is_tar_name
from iddpm.data.sources.archives.webdataset import is_webdataset, webdataset
from iddpm.data.sources.arrays.arrays import check_labels_option
from iddpm.data.sources.arrays.cifar import cifar, is_cifar
from iddpm.data.sources.arrays.idx import idx, is_idx
from iddpm.data.sources.arrays.imagenet64 import imagenet64, is_imagenet64
from iddpm.data.sources.arrays.npz import npz
from iddpm.data.sources.built_in.avatars import STYLES, all_styles, avatars
from iddpm.data.sources.built_in.digits import digits
from iddpm.data.sources.built_in.emoji import emoji
from iddpm.data.sources.built_in.fashion_mnist import SYSTEM_FOLDER, fashion_mnist
from iddpm.data.sources.hub.huggingface import huggingface, is_saved_dataset
from iddpm.data.sources.lsun import is_lsun, lsun
from iddpm.data.sources.tree.folder import folder
from iddpm.data.store import is_store
from iddpm.runtime.errors import ConfigError, DataError
from iddpm.runtime.telling import SILENT, Listener

__all__ = ["NAMES", "open_source", "quick_state"]

BUILT_IN = ("avatars", "avatars-all", "digits", "emoji")
NAMES = (*BUILT_IN, *KNOWN)
HUB = "hf:"
FEW = 32  # files of a source whose state is looked at before it is opened


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A source as the user gave it, and what its kind may need to open it."""

    given: str
    labels: str
    scratch: Path | None
    listener: Listener

    @property
    def path(self) -> Path:
        return Path(self.given)


# A kind is asked for in this order: whether a path is of it, and its source.
_FOLDERS: tuple[tuple[Callable[[Path], bool], Callable[[_Asked], Source]], ...] = (
    (is_lsun, lambda asked: lsun(asked.path, asked.given, asked.labels)),
    (is_saved_dataset, lambda asked: huggingface(asked.path, asked.given, asked.labels)),
    (is_cifar, lambda asked: cifar(asked.path, asked.given, asked.labels, asked.scratch)),
    (is_imagenet64, lambda asked: imagenet64(asked.path, asked.given, asked.labels, asked.scratch)),
    (is_idx, lambda asked: idx(asked.path, asked.given, asked.labels, asked.scratch)),
    (
        is_webdataset,
        lambda asked: webdataset(asked.path, asked.given, asked.labels, asked.scratch, tell=_telling(asked)),
    ),
    (
        is_tar_folder,
        lambda asked: tar_folder(asked.path, asked.given, asked.labels, asked.scratch, tell=_telling(asked)),
    ),
    (lambda path: True, lambda asked: folder(asked.path, asked.given, asked.labels)),
)
_FILES: tuple[tuple[Callable[[Path], bool], Callable[[_Asked], Source]], ...] = (
    (is_cifar, lambda asked: cifar(asked.path, asked.given, asked.labels, asked.scratch)),
    (is_imagenet64, lambda asked: imagenet64(asked.path, asked.given, asked.labels, asked.scratch)),
    (is_idx, lambda asked: idx(asked.path, asked.given, asked.labels, asked.scratch)),
    (lambda path: path.suffix.lower() in (".npz", ".npy"), lambda asked: npz(asked.path, asked.given, asked.labels, asked.scratch)),
    (lambda path: path.suffix.lower() == ".zip", lambda asked: zip_archive(asked.path, asked.given, asked.labels)),
    (is_webdataset, lambda asked: webdataset(asked.path, asked.given, asked.labels, asked.scratch, tell=_telling(asked))),
    (lambda path: is_tar_name(path.name), lambda asked: tar_archive(asked.path, asked.given, asked.labels, asked.scratch, tell=_telling(asked))),
)  # fmt: skip


def open_source(
    source: str | Path,
    *,
    labels: str = "auto",
    count: int | None = None,
    downloads: Path | None = None,
    scratch: Path | None = None,
    listener: Listener = SILENT,
) -> Source:
    """List a source by name or path; no picture is read.

    Args:
        source: A name of `NAMES`, hf:NAME or hf:NAME:CONFIG of the Hugging Face hub, or a path ("./digits" is a folder).
        labels: Where labels come from; "auto": what the source brings.
        count: Training pictures of a class, for the avatars alone.
        downloads: Where the sets that are downloaded are kept and looked for; None: nothing is downloaded.
        scratch: A folder with room for what must be unpacked to be read; None: the system's for temporary files.
        listener: Told what is downloaded and unpacked.

    Raises:
        DataError: No such source, or nothing usable in it.
        ConfigError: An option that this source does not have.
        OutputError: No room to download or to unpack.
    """
    asked = _Asked(given=str(source), labels=labels, scratch=scratch, listener=listener)
    if count is not None and not asked.given.startswith("avatars"):
        raise ConfigError(
            f"count={count}: {source} has as many pictures as it has", "count is for the avatars: leave it out"
        )
    if asked.given in BUILT_IN:
        check_labels_option(labels, asked.given)
        opened = _built_in(asked.given, count)
        return opened if labels == "auto" else _unlabelled(opened)
    if asked.given in KNOWN:
        return _known(asked, downloads)
    if asked.given.startswith(HUB):
        if asked.given == HUB:
            raise DataError("hf: names no dataset", "allowed: hf:NAME or hf:NAME:CONFIG")
        return huggingface(asked.given, asked.given, labels)
    return _at_path(asked)


def quick_state(source: str, downloads: Path) -> list[object] | None:
    """What stands for the state of a source that is one file, or a folder of a few, without opening it; else None.

    Opening some of these means unpacking them.
    """
    path = downloads / source if source in KNOWN else Path(source)
    try:
        files = [path] if path.is_file() else sorted(islice(path.iterdir(), FEW + 1))
        states = [(file.name, file.stat()) for file in files]
    except OSError:
        return None
    if not states or len(states) > FEW or not all(stat.S_ISREG(state.st_mode) for _, state in states):
        return None
    real = os.path.realpath(path)
    return [real, *([name, state.st_size, state.st_mtime_ns, state.st_ctime_ns] for name, state in states)]


def _built_in(name: str, count: int | None) -> Source:
    if name == "digits":
        return digits()
    if name == "emoji":
        return emoji()
    return avatars(name, STYLES if name == "avatars" else all_styles(), count)


def _known(asked: _Asked, downloads: Path | None) -> Source:
    """A well-known set: where the system has it, else downloaded."""
    name = asked.given
    if name == "fashion-mnist" and SYSTEM_FOLDER.is_dir():
        check_labels_option(asked.labels, name)
        opened = fashion_mnist(SYSTEM_FOLDER, asked.scratch)
        return opened if asked.labels == "auto" else _unlabelled(opened)
    if downloads is None:
        raise DataError(f"{name} is not here", "give a folder for downloads, or the path of its files")
    place = fetch_known(name, downloads, tell=_telling(asked), mirror=os.environ.get("IDDPM_MIRROR") or None)
    opened = (
        cifar(place, name, asked.labels, asked.scratch)
        if is_cifar(place)
        else idx(place, name, asked.labels, asked.scratch, KNOWN[name].classes or None)
    )
    return replace(opened, listing=replace(opened.listing, attribution=KNOWN[name].attribution))


def _at_path(asked: _Asked) -> Source:
    if not asked.given:
        raise DataError("the source is empty", f"allowed: a path, or one of {', '.join(NAMES)}")
    if not os.path.exists(asked.given):
        raise DataError(f"{asked.given}: no such file or folder", f"allowed: a path, or one of {', '.join(NAMES)}")
    if is_store(asked.given):
        raise DataError(f"{asked.given} is a prepared store already", "use it as it is, or prepare its source again")
    try:
        os.close(os.open(asked.given, os.O_RDONLY))
    except OSError as error:
        raise DataError(f"{asked.given} cannot be read: {error.strerror}", "check its permissions") from error
    for is_of_kind, opened in _FOLDERS if os.path.isdir(asked.given) else _FILES:
        if is_of_kind(asked.path):
            return opened(asked)
    raise DataError(
        f"{asked.given}: this kind of file cannot be read",
        "allowed: a folder, .zip, .tar (also .gz, .bz2, .xz), .npz, .npy, an IDX file; of CIFAR, Parquet and LSUN the folder",
    )


def _unlabelled(source: Source) -> Source:
    """The same pictures without labels."""
    listing = source.listing
    without = replace(listing, labels=None, classes=(), fingerprint=fingerprint(listing.fingerprint, "no labels"))
    return replace(source, listing=without)


def _telling(asked: _Asked) -> Callable[[str, int, int], None]:
    """Progress in bytes, told in MB."""

    def tell(task: str, done: int, total: int) -> None:
        whole = max(1, round(total / 1e6))
        asked.listener.progress(task, whole if done >= total else min(whole - 1, round(done / 1e6)), whole, "MB")

    return tell
