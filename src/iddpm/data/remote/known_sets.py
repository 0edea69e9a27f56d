"""The well-known sets that are downloaded by name: their files, sizes and digests, and whom to credit.

A mirror is a folder with a sub-folder for each set: MIRROR/cifar10/cifar-10-python.tar.gz.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from iddpm.data.progress import Tell
from iddpm.data.remote.download import Remote, fetch
from iddpm.runtime.errors import ConfigError

__all__ = ["KNOWN", "KnownSet", "fetch_known"]


@dataclass(frozen=True, kw_only=True)
class KnownSet:
    """A well-known set.

    Attributes:
        files: All that belongs to it.
        attribution: Whom to credit, and the licence.
        classes: The names of the labels 0, 1, ... where the files hold no names; else empty.
    """

    files: tuple[Remote, ...]
    attribution: str
    classes: tuple[str, ...] = ()


def fetch_known(name: str, downloads: Path, *, tell: Tell | None = None, mirror: str | None = None) -> Path:
    """Download what is missing of a well-known set, into a folder of its own.

    Args:
        name: One of `KNOWN`.
        downloads: The folder of all downloads.
        tell: As for `fetch`.
        mirror: URL of a folder that has a sub-folder for each set.

    Returns:
        What to open: the file itself where the set is one file, else the folder with all of them.

    Raises:
        ConfigError: No such set.
        DataError: As for `fetch`.
        OutputError: As for `fetch`.
    """
    if name not in KNOWN:
        raise ConfigError(f"no well-known set {name!r}", f"allowed: {', '.join(KNOWN)}")
    folder = Path(downloads) / name
    place = None if mirror is None else f"{mirror.rstrip('/')}/{name}"
    paths = [fetch(file, folder, tell=tell, mirror=place) for file in KNOWN[name].files]
    return paths[0] if len(paths) == 1 else folder


def _archive(name: str, size: int, digest: str) -> tuple[Remote, ...]:
    places = ("https://www.cs.toronto.edu/~kriz", "https://dataset.bj.bcebos.com/cifar")
    return (Remote(name=name, urls=tuple(f"{place}/{name}" for place in places), bytes=size, digest=digest),)


def _four(places: tuple[str, ...], *facts: tuple[int, str]) -> tuple[Remote, ...]:
    """The files of a set in MNIST's layout."""
    names = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    return tuple(
        Remote(name=name, urls=tuple(f"{place}/{name}" for place in places), bytes=size, digest=digest)
        for name, (size, digest) in zip(names, facts, strict=True)
    )


_CIFAR = (
    "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; "
    "no licence is stated, the authors ask to be cited (https://www.cs.toronto.edu/~kriz/cifar.html)"
)

KNOWN: Mapping[str, KnownSet] = {
    "cifar10": KnownSet(
        files=_archive(
            "cifar-10-python.tar.gz",
            170498071,
            "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
        attribution=f"CIFAR-10: {_CIFAR}",
    ),
    "cifar100": KnownSet(
        files=_archive(
            "cifar-100-python.tar.gz",
            169001437,
            "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        ),
        attribution=f"CIFAR-100: {_CIFAR}",
    ),
    "mnist": KnownSet(
        files=_four(
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                "https://storage.googleapis.com/cvdf-datasets/mnist",
                "http://yann.lecun.com/exdb/mnist",
            ),
            (9912422, "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            (28881, "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            (1648877, "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            (4542, "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
        attribution="MNIST: Y. LeCun, C. Cortes and C. J. C. Burges, CC BY-SA 3.0",
    ),
    "fashion-mnist": KnownSet(
        files=_four(
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            ),
            (26421880, "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            (29515, "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            (4422102, "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            (5148, "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
        attribution="Fashion-MNIST: H. Xiao, K. Rasul and R. Vollgraf, Zalando SE, 2017, MIT licence",
        classes=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
    ),
}
