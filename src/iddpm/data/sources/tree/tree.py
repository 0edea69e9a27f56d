"""A tree of named picture files as a source, whatever holds it: a folder, an archive, several archives."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from iddpm.data.listing import LISTED, LeftOut, Listing, Pool, Reader, Source, Tally, fingerprint, natural_key
from iddpm.data.names import Names, printable, printable_names
from iddpm.data.sources.sides import TRAIN, split_words
from iddpm.data.sources.tree.entries import SUFFIXES, Entry, Tree, gather
from iddpm.data.sources.tree.labels import Labelling, label_pictures
from iddpm.data.sources.tree.roles import Role, folder_roles
from iddpm.runtime.errors import DataError

__all__ = ["listed", "tree_source"]


def tree_source(
    entries: Iterable[Entry],
    *,
    given: str,
    kind: str,
    labels: str,
    state: Sequence[object],
    read_table: Callable[[str, int], bytes],
    places: Callable[[Names, Int64[np.ndarray, "n"]], Sequence[Any]],
    read: Reader,
    pool: Pool = "either",
) -> Source:
    """List a tree of files. No picture is read.

    Args:
        entries: All its files, in natural order.
        given: The source as the user gave it.
        kind: "folder", "zip" and so on.
        labels: "folders": the name of the folder below the top; "prefix": the file's name up to the first underscore,
            as in improved-diffusion; "none"; a table's path; "auto": "folders" where every picture lies in one of
            several, else "none".
        state: What else the fingerprint depends on.
        read_table: Reads a table of labels that lies in the tree, at its path and place.
        places: What the reader needs for some pictures, from their paths and the places of their entries.
        read: Reads one picture.
        pool: Who may read.

    Raises:
        DataError: No picture file there, nothing to train on, or the labels asked for do not exist.
    """
    tree = gather(entries, labels)
    if not tree.paths:
        ignored = tree.ignored
        first = f"; the first of {ignored.count} other files: {_reason(ignored.listed[0])}" if ignored.count else ""
        raise DataError(f"{given}: no picture file there{first}", "allowed: " + " ".join(sorted(SUFFIXES)))
    roles = folder_roles(tree.folders)
    labelling = label_pictures(given, tree, roles, labels, read_table)
    asked = labels if labelling.digest is None else "table"
    listing, paths, at = listed(
        tree,
        roles,
        labelling,
        given=given,
        kind=kind,
        settings={"labels": labels},
        fingerprint=fingerprint(kind, asked, labelling.digest, tree.digest, *state),
    )
    return Source(listing=listing, places=places(paths, at), read=read, pool=pool)


def _reason(left_out: LeftOut) -> str:
    return f"{left_out.name}: {left_out.reason}"


def listed(
    tree: Tree,
    roles: Sequence[Role],
    labelling: Labelling,
    *,
    given: str,
    kind: str,
    settings: dict[str, Any],
    fingerprint: str,
    part: str = "folder",
) -> tuple[Listing, Names, Int64[np.ndarray, "kept"]]:
    """The listing of the pictures that have a part and a label, their paths, and where the source finds each.

    Args:
        tree: All pictures.
        roles: What is said of the folders.
        labelling: Their labels.
        given: As in `Listing.source`.
        kind: As in `Listing`.
        settings: As in `Listing`.
        fingerprint: As in `Listing`.
        part: What the parts are made of, in words.

    Raises:
        DataError: Nothing is left to train on.
    """
    left_out = [_outside(tree, roles, part), *labelling.left_out]
    kept = np.flatnonzero(~np.logical_or.reduce([mask for mask, _ in left_out]))
    paths = tree.paths if len(kept) == len(tree.paths) else Names(tree.paths[index] for index in kept.tolist())
    held_out, sides = _split(given, tree, roles, kept)
    listing = Listing(
        source=given,
        kind=kind,
        names=printable_names(paths),
        classes=labelling.classes,
        labels=None if labelling.labels is None else labelling.labels[kept],
        held_out=held_out,
        split_rule=None if held_out is None else f"by {part}: {split_words(sides)}",
        ignored=_merged([tree.ignored, *(_tally(tree.paths, mask, reason) for mask, reason in left_out)]),
        settings=settings,
        fingerprint=fingerprint,
        notes=labelling.notes,
    )
    return listing, paths, tree.at[kept]


def _merged(tallies: Iterable[Tally]) -> Tally:
    """All that are left out, the first by name."""
    tallies = list(tallies)
    listed = sorted((each for tally in tallies for each in tally.listed), key=lambda each: natural_key(each.name))
    return Tally(sum(tally.count for tally in tallies), tuple(listed[:LISTED]))


def _outside(tree: Tree, roles: Sequence[Role], part: str) -> tuple[Bool[np.ndarray, "n"], str]:
    """What lies beside the parts, and the reason to leave it out."""
    words = sorted({role.side for role in roles if role.side} - {TRAIN})
    outside = np.array([role.side is None for role in roles], bool)
    return outside[tree.folder_of], f"outside the {part}s train, {', '.join(words)}"


def _tally(paths: Names, mask: Bool[np.ndarray, "n"], reason: str) -> Tally:
    first = np.flatnonzero(mask)[:LISTED].tolist()
    return Tally(int(mask.sum()), tuple(LeftOut(printable(paths[index]), reason) for index in first))


def _split(
    given: str, tree: Tree, roles: Sequence[Role], kept: Int64[np.ndarray, "kept"]
) -> tuple[Bool[np.ndarray, "kept"] | None, list[str]]:
    """What is held out of the pictures used, and their parts; None where nothing is."""
    folders = tree.folder_of[kept]
    sides = {side for index in np.unique(folders).tolist() if (side := roles[index].side)}
    if not sides - {TRAIN}:
        return None, []
    if TRAIN not in sides:
        raise DataError(
            f"{given}: no picture is left to train on: those of train have no label",
            "give labels for train, or use labels none",
        )
    return np.array([role.side != TRAIN for role in roles], bool)[folders], sorted(sides)
