"""Run the command `vibe-llms` as `python -m vibe_llms`."""

import os
import sys

if not sys.flags.safe_path and (sys.path[0] == "" or sys.path[0] == os.getcwd()):
    # Python puts the current folder first, but nothing must be imported from there.
    del sys.path[0]

from vibe_llms.cli.main import main

if __name__ == "__main__":
    main()
