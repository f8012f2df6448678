"""Large tensors in large pages; to be imported before torch, which looks when it allocates first.

Rows of thousands of clients take hundreds of megabytes, made anew in every step. In pages of 4 kB
the kernel would take twice as long to hand them out as a step takes to fill them.
"""

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
