"""What can go wrong, as a tree.

IddpmError
├── InputError            the user can put it right: exit status 2, one or two lines, no traceback
│   ├── ConfigError       a setting, a recipe, a flag
│   ├── DataError         a source, a store, a picture
│   ├── RunError          a run directory, a checkpoint, a journal
│   └── OutputError       a place that cannot be written
└── TrainingError         training cannot go on: exit status 1
"""

__all__ = ["ConfigError", "DataError", "IddpmError", "InputError", "OutputError", "RunError", "TrainingError"]


class IddpmError(Exception):
    """Base of every error that the project raises on purpose.

    Args:
        what: What is wrong, where, and what is allowed, in one line.
        fix: What to do about it, in one line.
    """

    exit_status = 1
    is_told_elsewhere: bool | None = None
    """Of several processes: whether another one raised it too, and tells it; None: not known."""

    def __init__(self, what: str, fix: str | None = None):
        super().__init__(what if fix is None else f"{what}\n{fix}")
        self.what = what
        self.fix = fix

    def __reduce__(self) -> tuple[type["IddpmError"], tuple[str, str | None]]:
        """Goes from one process to another whole."""
        return type(self), (self.what, self.fix)


class InputError(IddpmError):
    """Something the user gave cannot be used."""

    exit_status = 2


class ConfigError(InputError):
    """A setting, a recipe or a flag is not valid."""


class DataError(InputError):
    """A source, a store or a picture cannot be used."""


class RunError(InputError):
    """A run directory, a checkpoint or a journal cannot be used."""


class OutputError(InputError):
    """A place cannot be written."""


class TrainingError(IddpmError):
    """Training cannot go on."""
