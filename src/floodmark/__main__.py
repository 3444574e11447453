"""`python -m floodmark` is the same as `floodmark`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

if __name__ == "__main__":
    # `-m` puts the working folder first, where somebody else's `yaml.py` may lie.
    with suppress(FileNotFoundError):  # the folder itself
        if not sys.flags.safe_path and sys.path[0] == os.getcwd():
            del sys.path[0]
    from floodmark.cli.main import main

    sys.exit(main())
