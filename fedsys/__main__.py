"""`python -m fedsys`."""

from fedsys.cli import main

if __name__ == "__main__":
    main()
