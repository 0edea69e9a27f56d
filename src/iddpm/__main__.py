"""`python -m iddpm` is `iddpm`."""

import sys

from iddpm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
