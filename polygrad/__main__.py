"""``python -m polygrad``.

Here: the call.
Not here: the commands (`polygrad.cli`).
"""

import sys

from polygrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
