"""Entry point of `python -m fedsys` and of the command `fedsys`."""

import signal
import sys

from fedsys.distributed.parent import end_with_launcher
from fedsys.system.process import tune_process


def main() -> None:
    """Prepare the process before the slow import of torch, and run the command."""
    if sys.argv[1:] == ["--version"]:
        from fedsys import __version__

        print(f"fedsys {__version__}")
        return
    if sys.argv[1:2] and sys.argv[1] in ("predict", "export"):
        from fedsys.cli.models import main as use_model

        sys.exit(use_model(sys.argv[1:]))
    tune_process()
    end_with_launcher()
    # Until a run handles the signal, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fedsys.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
