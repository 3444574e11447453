"""`python -m floodmark` is the same as `floodmark`."""

from __future__ import annotations

import sys

from floodmark.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
