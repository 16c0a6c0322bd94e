"""`python -m mingyue` is the command `mingyue`."""

import sys

from mingyue.cli import main

if __name__ == "__main__":
    sys.exit(main())
