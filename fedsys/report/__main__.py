"""`python -m fedsys.report`."""

import sys

from fedsys.report.main import main

if __name__ == "__main__":
    sys.exit(main())
