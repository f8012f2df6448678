"""`python -m fedsys.reproduce`, and the command `fedsys-reproduce`."""

import sys

from fedsys.system.process import tune_process


def main() -> int:
    """Tune this process, which must happen before torch is imported, and run the command."""
    tune_process()
    from fedsys.reproduce.main import main as run_command

    return run_command()


if __name__ == "__main__":
    sys.exit(main())
