"""`python -m vibe_llms` is the command `vibe-llms`."""

import os
import sys

if not sys.flags.safe_path and (sys.path[0] == "" or sys.path[0] == os.getcwd()):
    # Python itself puts the current folder first; nothing is ever read from there.
    del sys.path[0]

from vibe_llms.cli.main import main

if __name__ == "__main__":
    main()
