"""Where the clients' containers meet. It is no client, so any of them may die and come back.

It keeps the secret that opens it in a file that only the containers of this run see, and makes it
when there is none. It ends when the last client has left, so that `docker compose up` does, too.
"""

import os
import secrets
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

from fedsys.distributed import network, stores
from fedsys.distributed.tunnel import Gate

PORT = 29400
PATIENCE = 30.0  # seconds in which all of them may be on their way back


def make_secret(file: Path) -> None:
    """Write a new secret, unless there is one; it appears when it is complete."""
    if file.exists():
        return
    partial = file.with_suffix(".partial")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(secrets.token_hex(32))
    partial.rename(file)


def main() -> None:
    """Keep the store open while there are visitors."""
    make_secret(Path(os.environ[network.SECRET_FILE]))
    address = network.resolve(socket.gethostname())
    hosted = stores.host_for_others(address, PORT, network.read_secret(), timedelta(minutes=5))
    gate = hosted.tunnel
    assert isinstance(gate, Gate)
    print(f"the clients meet at {address}:{gate.port}", flush=True)
    came, left = False, time.monotonic()
    while not came or time.monotonic() - left < PATIENCE:
        time.sleep(1)
        if gate.visitors:
            came, left = True, time.monotonic()
    print("the clients have left", flush=True)


if __name__ == "__main__":
    sys.exit(main())
