"""What must hold before any client is imported: SciPy reads whether it may take arrays like ours when it is loaded.

Here: that variable, and the folder on the path, for the tests import what they share.
"""

import os
import sys
from pathlib import Path

os.environ["SCIPY_ARRAY_API"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
