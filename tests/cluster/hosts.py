"""Several hosts on one machine: network namespaces with their own names and addresses.

They share the file system, as the hosts of a cluster share its storage.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

INTERFACE = "eth0"
# `ip netns exec` would mount a new /sys without the cgroups that slurmd needs.
_INSIDE = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'


def ip(*arguments: str) -> None:
    """Run `ip ...`; raise an error with its stderr if it fails."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class Hosts:
    """Hosts named host1, host2, ... on one bridge, together with this machine.

    Attributes:
        names: names of the hosts; every host can resolve them.
        gateway: address of this machine on the bridge.
    """

    def __init__(self, count: int, folder: Path) -> None:
        self._table = folder / "hosts"
        self._tag = f"fs{os.getpid() % 100_000}"
        self._subnet = f"10.{os.getpid() % 200 + 50}.77"
        self.names = [f"host{number}" for number in range(1, count + 1)]
        self.gateway = f"{self._subnet}.254"

    def open(self) -> None:
        """Create the bridge and the hosts."""
        ip("link", "add", self._tag, "type", "bridge")
        ip("address", "add", f"{self.gateway}/24", "dev", self._tag)
        ip("link", "set", self._tag, "up")
        table = [f"{self.address(name)} {name}\n" for name in self.names]
        self._table.write_text("127.0.0.1 localhost\n" + "".join(table))
        for name in self.names:
            space = self._space(name)
            ip("netns", "add", space)
            ip("link", "add", self._cable(name), "type", "veth", "peer", INTERFACE, "netns", space)
            ip("link", "set", self._cable(name), "master", self._tag, "up")
            ip("-n", space, "address", "add", f"{self.address(name)}/24", "dev", INTERFACE)
            ip("-n", space, "link", "set", INTERFACE, "up")
            ip("-n", space, "link", "set", "lo", "up")

    def close(self) -> None:
        """Remove everything that was created."""
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", self._space(name)], capture_output=True)
            subprocess.run(["ip", "link", "delete", self._cable(name)], capture_output=True)
        subprocess.run(["ip", "link", "delete", self._tag], capture_output=True)

    def address(self, name: str) -> str:
        """Return the address of a host."""
        return f"{self._subnet}.{self.names.index(name) + 1}"

    def on(self, name: str, *command: str) -> list[str]:
        """Return the command line that runs a command on a host, with the same process id."""
        inside = ["sh", "-c", _INSIDE, name, str(self._table), *command]
        space = f"--net=/run/netns/{self._space(name)}"
        return ["nsenter", space, "unshare", "--uts", "--mount", *inside]

    def cut_off(self, name: str) -> None:
        """Disconnect a host from the bridge."""
        ip("link", "set", self._cable(name), "down")

    def restore(self, name: str) -> None:
        """Connect a host to the bridge again."""
        ip("link", "set", self._cable(name), "up")

    def _space(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _cable(self, name: str) -> str:
        return f"{self._tag}-{self.names.index(name) + 1}"
