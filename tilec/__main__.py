"""python -m tilec: the command line."""

import sys

from tilec.cli import main

if __name__ == "__main__":
    sys.exit(main())
