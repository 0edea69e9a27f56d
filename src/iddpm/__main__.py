"""`python -m iddpm` is `iddpm`."""

from iddpm.cli.main import command

if __name__ == "__main__":
    command()
