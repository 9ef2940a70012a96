"""What there would be without a guardian: a program that becomes the server.

python unguarded.py CONTROL PROGRAM COMMAND...
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.write(int(sys.argv[1]), b"0")
    os.execvp(sys.argv[3], sys.argv[3:])
