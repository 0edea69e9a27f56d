"""What the folders of a tree say of the pictures in them: train, val or test, and the class."""

from collections.abc import Sequence
from dataclasses import dataclass

from iddpm.data.sources.sides import HELD_OUT, TRAIN, is_split
from iddpm.data.sources.tree.entries import Parts

__all__ = ["Role", "folder_roles", "shared_folders"]


@dataclass(frozen=True, kw_only=True)
class Role:
    """What one folder says of the pictures in it.

    Attributes:
        side: "train", "val" and so on; "" where the tree has no such parts; None where it lies outside of them.
        class_name: The class, or None where there is no class folder.
    """

    side: str | None = ""
    class_name: str | None = None


def folder_roles(folders: Sequence[Parts]) -> tuple[Role, ...]:
    """Honour the folders train and val, valid, validation or test at the top, below what all folders share.

    They count where "train" and at least one of the others hold pictures; else nothing is held out.
    """
    depth = shared_folders(folders)
    inner = [folder[depth:] for folder in folders]
    tops = [folder[0].lower() if folder else "" for folder in inner]
    if not is_split(tops):
        return tuple(Role(class_name=_first(folder)) for folder in inner)
    inside = [top == TRAIN or top in HELD_OUT for top in tops]
    depth = shared_folders([folder[1:] for folder, each in zip(inner, inside, strict=True) if each and len(folder) > 1])
    return tuple(
        Role(side=top, class_name=_first(folder[1 + depth :])) if each else Role(side=None)
        for folder, top, each in zip(inner, tops, inside, strict=True)
    )


def shared_folders(folders: Sequence[Parts]) -> int:
    """How many leading folders all share, as long as another folder follows in each."""
    if not folders:
        return 0
    low, high, most = min(folders), max(folders), min(map(len, folders)) - 1
    depth = 0
    while depth < most and low[depth] == high[depth]:
        depth += 1
    return depth


def _first(folder: Parts) -> str | None:
    return folder[0] if folder else None
