"""The labels of a tree of pictures: from folders, from prefixes of the file names, from a table, or none."""

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int64

from iddpm.data.listing import natural_key
from iddpm.data.names import one_line, printable
from iddpm.data.sources.sides import TRAIN
from iddpm.data.sources.tree.entries import Tree
from iddpm.data.sources.tree.label_match import match
from iddpm.data.sources.tree.label_table import LabelTable, number_classes, open_tables
from iddpm.data.sources.tree.roles import Role, shared_folders
from iddpm.runtime.errors import DataError

__all__ = ["MODES", "Labelling", "label_pictures"]

MODES = ("auto", "folders", "prefix", "none")


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelling:
    """The labels of some pictures.

    Attributes:
        classes: Their names.
        labels: The number of each picture's class (-1 where it is left out); None where there are no labels.
        left_out: Pictures that cannot be used for want of a label, with the reason.
        notes: Remarks for the user.
        digest: Stands for the table's content.
    """

    classes: tuple[str, ...] = ()
    labels: Int64[np.ndarray, "n"] | None = None
    left_out: tuple[tuple[Bool[np.ndarray, "n"], str], ...] = ()
    notes: tuple[str, ...] = ()
    digest: str | None = None


def label_pictures(
    given: str, tree: Tree, roles: Sequence[Role], labels: str, read: Callable[[str, int], bytes]
) -> Labelling:
    """Label the pictures of a tree.

    Args:
        given: The source as the user gave it.
        tree: The pictures.
        roles: What each of its folders says.
        labels: "auto", "folders", "prefix", "none", or a table's path, from here or within the source.
        read: Reads a table of the source at its path and place.

    Raises:
        DataError: The labels asked for do not exist, or the table cannot be used.
    """
    if labels == "none":
        return Labelling()
    if labels == "prefix":
        return _by_prefix(given, tree, roles)
    if labels not in MODES:
        return _by_table(given, tree, roles, open_tables(given, labels, tree.tables, read, MODES))
    found = _by_folder(given, tree, roles, asked=labels == "folders")
    hint = next(iter(tree.tables), None)
    if labels == "folders" or hint is None:
        return found
    note = f"{printable(hint)} may hold labels: --labels {printable(hint)} uses it"
    return replace(found, notes=(*found.notes, note))


def _by_folder(given: str, tree: Tree, roles: Sequence[Role], asked: bool) -> Labelling:
    """The class is the folder. Flat parts beside a train of class folders are left out: train keeps its classes."""
    inside = [role for role in roles if role.side is not None]
    names = {role.class_name for role in inside if role.class_name is not None}
    loose = np.array([role.side is not None and role.class_name is None for role in roles], bool)[tree.folder_of]
    if not loose.any():
        return _of_folders(tree, roles, names) if asked or len(names) > 1 else Labelling()
    trained = {role.class_name for role in inside if role.side == TRAIN}
    if trained and None not in trained and (asked or len(trained) > 1):
        return _without_flat(tree, roles, names, loose)
    count, total = int(loose.sum()), int(_inside(tree, roles).sum())
    if asked:
        first = tree.paths[int(loose.argmax())].rpartition("/")[2]
        raise DataError(
            f"{given}: {count} pictures lie in no class folder, the first is {one_line(first)}",
            "move them into class folders, or use labels none",
        )
    mixed = f"no labels: {count} of {total} pictures lie outside the sub-folders"
    return Labelling(notes=(mixed,) if count < total else ())


def _without_flat(tree: Tree, roles: Sequence[Role], names: Collection[str], flat: np.ndarray) -> Labelling:
    """ImageNet's layout: class folders in train, none in val or test."""
    side = np.array([role.side or "" for role in roles])[tree.folder_of]
    words = sorted(set(side[flat].tolist()))
    cures = "--labels TABLE gives their labels (ImageNet's val: LOC_val_solution.csv), --labels none takes all without"
    return replace(
        _of_folders(tree, roles, names),
        left_out=tuple((flat & (side == word), f"no class folder ({word})") for word in words),
        notes=tuple(
            f"{(flat & (side == word)).sum()} pictures of {word} lie in no class folder and are left out: {cures}"
            for word in words
        ),
    )


def _of_folders(tree: Tree, roles: Sequence[Role], names: Collection[str]) -> Labelling:
    classes = tuple(sorted(names, key=natural_key))
    number = {name: index for index, name in enumerate(classes)}
    return Labelling(classes=tuple(map(printable, classes)), labels=_numbers(roles, number)[tree.folder_of])


def _by_prefix(given: str, tree: Tree, roles: Sequence[Role]) -> Labelling:
    found: dict[str, int] = {}
    labels = array("q")
    for path, inside in zip(tree.paths, _inside(tree, roles), strict=True):
        name = path.rpartition("/")[2]
        prefix, mark, _ = name.partition("_")
        if inside and not mark:
            raise DataError(
                f"{given}: {one_line(name)} has no class prefix", "name the files CLASS_anything, or use other labels"
            )
        labels.append(found.setdefault(prefix, len(found)) if inside else -1)
    classes = tuple(sorted(found, key=natural_key))
    number = {name: index for index, name in enumerate(classes)}
    return Labelling(
        classes=tuple(map(printable, classes)),
        labels=_renumbered(np.array(labels, np.int64), [number[name] for name in found]),
    )


def _by_table(given: str, tree: Tree, roles: Sequence[Role], tables: Sequence[LabelTable]) -> Labelling:
    """The label is the table's. A part (train, val) of which the table names nothing keeps its class folders."""
    name, inside = tables[0].name, _inside(tree, roles)
    found = match(tree.paths, tables, shared_folders(tree.folders))
    told = np.where(inside, found.label_of, -1)
    if not (told >= 0).any():
        raise DataError(
            f"{name}: none of its {sum(len(table.files) for table in tables)} files is a picture of {given}",
            "allowed: paths from the source's top, base names, or base names without the suffix",
        )
    used = {found.texts[index] for index in np.unique(told[told >= 0])}
    kept = _kept_roles(tree, roles, told)
    classes, number = _classes_of_both(name, used, kept) if any(kept) else number_classes(used, name)
    by_folder = _numbers(kept, number)[tree.folder_of]
    labels = np.where(by_folder >= 0, by_folder, _renumbered(told, [number.get(text, -1) for text in found.texts]))
    sides = sorted({role.side for role in kept if role is not None and role.side})
    notes = [f"{' and '.join(sides)}: labels by class folder, {name} names none of those pictures"] if sides else []
    notes += [f"{found.idle} rows of {name} name no picture here"] if found.idle else []
    return Labelling(
        classes=tuple(map(printable, classes)),
        labels=labels,
        left_out=((inside & (labels < 0), f"no label in {name}"),),
        notes=tuple(notes),
        digest=" ".join(table.digest for table in tables),
    )


def _kept_roles(tree: Tree, roles: Sequence[Role], told: np.ndarray) -> list[Role | None]:
    """The roles of the folders in parts of which no picture has a row and every folder names a class."""
    named = np.bincount(tree.folder_of, weights=told >= 0, minlength=len(roles)) > 0
    other = {role.side for role, has in zip(roles, named, strict=True) if has or role.class_name is None} | {"", None}
    return [None if role.side in other else role for role in roles]


def _classes_of_both(name: str, used: set[str], kept: Sequence[Role | None]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Classes where some parts are labelled by the table and others by their folders: those of train."""
    by_folder = {role.class_name for role in kept if role is not None and role.class_name is not None}
    own = {role.class_name for role in kept if role is not None and role.class_name is not None and role.side == TRAIN}
    trained = own or used
    strange = sorted((used if own else by_folder) - trained, key=natural_key)
    if strange:
        raise DataError(
            f"{name}: class {one_line(strange[0])} is none of train's, of which the first is "
            f"{one_line(min(trained, key=natural_key))}",
            "allowed: one name for a class in the table and in the class folders",
        )
    classes = tuple(sorted(trained | by_folder, key=natural_key))
    return classes, {text: number for number, text in enumerate(classes)}


def _numbers(roles: Sequence[Role | None], number: dict[str, int]) -> Int64[np.ndarray, "folders"]:
    """The class of each folder as a number, -1 without one."""
    names = (None if role is None else role.class_name for role in roles)
    return np.array([-1 if name is None else number.get(name, -1) for name in names], np.int64)


def _inside(tree: Tree, roles: Sequence[Role]) -> Bool[np.ndarray, "n"]:
    """The pictures that do not lie outside the parts."""
    return np.array([role.side is not None for role in roles], bool)[tree.folder_of]


def _renumbered(numbers: Int64[np.ndarray, "n"], new: Sequence[int]) -> Int64[np.ndarray, "n"]:
    """Other numbers for the same; -1 stays."""
    return np.append(np.array(new, np.int64), -1)[numbers]
