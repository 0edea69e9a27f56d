"""A folder of picture files as a source: which are used, in which order, with which labels and split."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iddpm.data.frame import Frame, Picture, UnusablePictureError, from_file
from iddpm.data.listing import LeftOut, Listing, Source, Tally, fingerprint, natural_key
from iddpm.data.names import Names
from iddpm.runtime.errors import DataError

__all__ = ["SUFFIXES", "folder"]

SUFFIXES = frozenset(
    {
        ".bmp",
        ".gif",
        ".jfif",
        ".jpe",
        ".jpeg",
        ".jpg",
        ".pbm",
        ".pgm",
        ".png",
        ".pnm",
        ".ppm",
        ".tif",
        ".tiff",
        ".webp",
    }
)
HELD_OUT_FOLDERS = frozenset({"val", "valid", "validation", "test"})

_Parts = tuple[str, ...]


@dataclass(frozen=True)
class _Reader:
    root: str

    def __call__(self, place: str, frame: Frame) -> Picture:
        path = os.path.join(self.root, place)
        try:
            with open(path, "rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    raise UnusablePictureError("empty file")
                return from_file(file, frame)
        except OSError as error:
            raise UnusablePictureError(error.strerror or str(error)) from error


def folder(root: Path, given: str, labels: str = "auto") -> Source:
    """List a folder and all below it. No picture is read.

    Args:
        root: The folder.
        given: The source as the user gave it.
        labels: "folders": the sub-folder's name; "prefix": the file's name up to the first underscore, as in
            improved-diffusion; "none"; "auto": "folders" where every picture lies in one of several,
            else "none".

    Raises:
        DataError: No picture file there, or the labels asked for do not exist.
    """
    files, ignored = _scan(root)
    files, held_out, rule, outside = _split_folders(files)
    ignored = sorted(ignored + outside, key=lambda each: natural_key(each.name))
    if not files:
        shown = f" ({len(ignored)} other files)" if ignored else ""
        raise DataError(f"{given}: no picture file there{shown}", "allowed: " + " ".join(sorted(SUFFIXES)))
    names, notes = _class_names(given, [parts[1:] if rule else parts for parts in files], labels)
    classes = tuple(sorted(set(names), key=natural_key)) if names else ()
    number = {name: index for index, name in enumerate(classes)}
    paths = tuple(os.path.join(*parts) for parts in files)
    listing = Listing(
        source=given,
        kind="folder",
        names=tuple(map(_printable, paths)),
        classes=tuple(map(_printable, classes)),
        labels=np.array([number[name] for name in names], np.int64) if names else None,
        held_out=held_out,
        split_rule=rule,
        ignored=Tally.of(ignored),
        settings={"labels": labels},
        fingerprint=fingerprint("folder", labels, _states(root, paths), [[i.name, i.reason] for i in ignored]),
        notes=notes,
    )
    return Source(listing=listing, places=Names(paths), read=_Reader(str(root)))


def _scan(root: Path) -> tuple[list[_Parts], list[LeftOut]]:
    """Every picture file below a folder in natural order, and every other entry with its reason."""
    files, ignored = [], []
    for parts, reason in _walk(root):
        if reason:
            ignored.append(LeftOut(_printable(os.path.join(*parts)), reason))
        else:
            files.append(parts)
    return sorted(files, key=lambda parts: tuple(map(natural_key, parts))), ignored


def _walk(root: Path) -> Iterator[tuple[_Parts, str | None]]:
    """Files below a folder, with a reason to leave them out or None. Links are followed, no folder twice."""

    def unreadable(error: OSError) -> None:
        raise DataError(f"{error.filename}: {error.strerror}", "check the permissions") from error

    entered = {os.path.realpath(root)}
    for at, folders, names in os.walk(root, followlinks=True, onerror=unreadable):
        above = Path(at).relative_to(root).parts
        yield from (((*above, name), _file_reason(os.path.join(at, name))) for name in names)
        for name in sorted(folders):
            real = os.path.realpath(os.path.join(at, name))
            reason = (
                "hidden folder"
                if name.startswith(".")
                else "link to a folder read already"
                if real in entered
                else None
            )
            if reason:
                folders.remove(name)
                yield (*above, name), reason
            entered.add(real)
        folders.sort()


def _file_reason(path: str) -> str | None:
    """Why a file is not taken for a picture, or None."""
    name = os.path.basename(path)
    suffix = os.path.splitext(name)[1].lower()
    if name.startswith("."):
        return "hidden file"
    if suffix not in SUFFIXES:
        return f"not a picture file ({suffix})" if suffix else "not a picture file (no suffix)"
    return None if os.path.isfile(path) else "not a regular file, or a broken link"


def _split_folders(
    files: list[_Parts],
) -> tuple[list[_Parts], np.ndarray | None, str | None, list[LeftOut]]:
    """Honour the folders train and val, valid, validation or test at the top.

    They count where "train" and at least one of the others hold pictures; else nothing is changed.

    Returns:
        The files used, which of them are held out, the rule in words, and what lies outside the folders.
    """
    side = [parts[0].lower() if len(parts) > 1 else "" for parts in files]
    kept_out = sorted(HELD_OUT_FOLDERS & set(side))
    if "train" not in side or not kept_out:
        return files, None, None, []
    inside = [each == "train" or each in HELD_OUT_FOLDERS for each in side]
    outside = [
        LeftOut(_printable(os.path.join(*parts)), f"outside the folders train, {', '.join(kept_out)}")
        for parts, kept in zip(files, inside, strict=True)
        if not kept
    ]
    files = [parts for parts, kept in zip(files, inside, strict=True) if kept]
    held_out = np.array([parts[0].lower() != "train" for parts in files])
    return files, held_out, f"by folder: trains on train, holds out {' and '.join(kept_out)}", outside


def _class_names(given: str, files: list[_Parts], labels: str) -> tuple[list[str] | None, tuple[str, ...]]:
    """The class name of each file, or None where there are none, and remarks for the user."""
    if labels == "none":
        return None, ()
    if labels == "prefix":
        return _prefixes(given, files), ()
    files = _without_common_folder(files)
    loose = [parts for parts in files if len(parts) == 1]
    if labels == "folders" and loose:
        raise DataError(
            f"{given}: {len(loose)} pictures lie in no class folder, the first is {_printable(loose[0][0])}",
            "move them into class folders, or use labels none",
        )
    if loose:
        mixed = f"no labels: {len(loose)} of {len(files)} pictures lie outside the sub-folders"
        return None, (mixed,) if len(loose) < len(files) else ()
    names = [parts[0] for parts in files]
    return (names if labels == "folders" or len(set(names)) > 1 else None), ()


def _prefixes(given: str, files: list[_Parts]) -> list[str]:
    for parts in files:
        if not parts[-1].partition("_")[1]:
            raise DataError(
                f"{given}: {_printable(parts[-1])} has no class prefix",
                "name the files CLASS_anything, or use other labels",
            )
    return [parts[-1].partition("_")[0] for parts in files]


def _without_common_folder(files: list[_Parts]) -> list[_Parts]:
    """Leave out a leading folder that all the files share, as long as another folder follows in each."""
    while all(len(parts) > 2 for parts in files) and len({parts[0] for parts in files}) == 1:
        files = [parts[1:] for parts in files]
    return files


def _states(root: Path, paths: tuple[str, ...]) -> list[list[object]]:
    """Name, bytes and time of change of each file: enough to see that nothing was touched since."""
    states: list[list[object]] = []
    for path in paths:
        try:
            state = os.stat(os.path.join(root, path))
            states.append([_printable(path), state.st_size, state.st_mtime_ns])
        except OSError:  # a broken link; reading it will say so
            states.append([_printable(path), -1, 0])
    return states


def _printable(name: str) -> str:
    """A file name as text that can be written as UTF-8, whatever bytes it holds."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
