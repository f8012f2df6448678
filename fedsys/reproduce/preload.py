"""What every run imports: the server that forks them does it once, for all of them."""

import hydra  # noqa: F401
import torch.distributed.checkpoint  # noqa: F401

from fedsys import cli  # noqa: F401
from fedsys.compat import torchmetrics
from fedsys.runtime import job  # noqa: F401

torchmetrics()
