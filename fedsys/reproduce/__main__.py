"""`python -m fedsys.reproduce`."""

import sys

from fedsys.reproduce.main import main

if __name__ == "__main__":
    sys.exit(main())
