"""Import once, in the fork server, the modules that every run needs."""

import hydra  # noqa: F401
import torch.distributed.checkpoint  # noqa: F401

from fedsys.cli import main as cli  # noqa: F401
from fedsys.system.compat import torchmetrics
from fedsys.training import job  # noqa: F401

torchmetrics()
