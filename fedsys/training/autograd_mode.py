"""The mode of autograd in which steps run."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from fedsys.core.oracles import Oracle


def stepping(oracle: Oracle) -> AbstractContextManager[None]:
    """Return the cheapest autograd mode of torch that the oracle works in, for the steps."""
    return torch.no_grad() if oracle.uses_autograd else torch.inference_mode()
