from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from processes import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Processes that stay for the whole session: `ranks(4, job, *args)`."""
    team = Ranks()
    yield team
    team.close()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """As many threads as a rank of the placement tests has, and none to fight over."""
    torch.set_num_threads(1)
