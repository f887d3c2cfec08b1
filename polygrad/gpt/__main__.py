"""``python -m polygrad.gpt``.

Here: the call.
Not here: the commands.
"""

import sys

from polygrad.gpt import main

if __name__ == "__main__":
    sys.exit(main())
