"""Where the clients' containers meet. It is no client, so any of them may die and come back.

It ends when the last of them has left, so that `docker compose up` does, too.
"""

import sys
import time
from pathlib import Path

from torch.distributed import TCPStore

PORT = 29400
PATIENCE = 30.0  # seconds in which all of them may be on their way back


def visitors() -> int:
    """Open connections to the store that are not its own."""
    tables = [Path(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    rows = [row.split() for table in tables for row in table.read_text().splitlines()[1:]]
    # A connection may be IPv4 at one end and IPv6 at the other: the last 13 characters are equal.
    opened = [(row[1][-13:], row[2][-13:]) for row in rows if row[3] == "01"]
    ours = {local for local, _ in opened}
    return sum(local.endswith(f":{PORT:04X}") and remote not in ours for local, remote in opened)


def main() -> None:
    """Keep the store open while there are visitors."""
    store = TCPStore("0.0.0.0", PORT, is_master=True, wait_for_workers=False)
    print(f"the clients meet at port {store.port}", flush=True)
    came, left = False, time.monotonic()
    while not came or time.monotonic() - left < PATIENCE:
        time.sleep(1)
        if visitors():
            came, left = True, time.monotonic()
    print("the clients have left", flush=True)


if __name__ == "__main__":
    sys.exit(main())
