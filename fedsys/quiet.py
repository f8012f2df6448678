"""One line instead of a C++ stack; to be imported before torch, which looks when it is loaded.

When a rank ends, torch's store warns on every other one. fedsys says in a line who was lost.
"""

import os

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
