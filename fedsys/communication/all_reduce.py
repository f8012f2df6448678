"""All-reduce averaging: the communicator of the periodic algorithms."""

from __future__ import annotations

from fedsys.communication.communicator import Communicator


class AllReduce(Communicator):
    """Weighted means by one all-reduce in every K-th iteration: the base class as it is.

    Options are those of `Communicator`.
    """

    name = "all_reduce"
