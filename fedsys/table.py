"""The former name of `python -m fedsys.report.table`."""

import sys

if __name__ == "__main__":
    print("fedsys.table is now fedsys.report.table: python -m fedsys.report.table", file=sys.stderr)
    sys.exit(2)
