"""What all problems from functions share: data, draws, terms, metrics and how to compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedsys.core.constants import Constants
from fedsys.core.errors import require
from fedsys.core.site import Site
from fedsys.problems.custom.client_data import ClientData, HostedData
from fedsys.problems.custom.client_loop import Hosted
from fedsys.problems.custom.draws import GENERATORS, Draws, Samples

Metrics = Callable[..., Mapping[str, Any]]
WAYS = ("auto", "vmap", "loop")
ESTIMATE = "estimate"


@dataclass(frozen=True, kw_only=True)
class FunctionProblem:
    """The options that problems from functions have in common.

    A function gets the variables in the form of their starting points (a tensor of any shape, a
    dictionary of tensors, or a module), the client's data, and, if it takes one more argument, the
    random generator of the draw. With `samples` that argument is the index of a sample.

    Args:
        client_data: a function of the client's number, which is called for hosted clients only, or
            a list with an entry for each client; by default the number itself is the data.
        samples: the number of samples of each client, or a function of the client. f_m is then the
            mean over all samples, and full gradients, operators and metrics are exact means.
        batch_size: the number of samples per draw; None for all of them.
        sampling: "replacement", or "epochs", in which every sample comes once in a random order.
        per_batch: whether functions take the indices [B] of all samples of a draw and return the
            mean over them.
        rng: the generator of a function that takes one, "numpy" or "torch"; an annotation
            `rng: torch.Generator` says the same.
        mean_draws: the number of draws whose average stands for the mean of a function that uses
            its generator. Without it, algorithms that need full operators are refused.
        metrics: a function of the mean of the variables that returns numbers by name.
        batched: whether functions take all hosted clients at once: variables and data with the
            client as first axis, and samples [C, B].
        vectorize: "auto" maps functions of one client over clients by torch.func.vmap where that
            works, and else calls them in a loop; "vmap" or "loop" prescribes one.
        constants: the constants of theorems, or "estimate".
    """

    client_data: ClientData = None
    samples: Samples = None
    batch_size: int | None = 1
    sampling: str = "replacement"
    per_batch: bool = False
    rng: str = "numpy"
    mean_draws: int | None = None
    metrics: Metrics | None = None
    batched: bool = False
    vectorize: str = "auto"
    constants: Constants | str | None = None

    def hosted(self, site: Site) -> Hosted:
        """Return the hosted clients with their data and draws; check the options."""
        owner = type(self).__name__
        require(self.vectorize in WAYS, owner, "vectorize", self.vectorize, "auto, vmap or loop")
        require(self.rng in GENERATORS, owner, "rng", self.rng, "numpy or torch")
        draws = self.mean_draws
        valid = draws is None or (type(draws) is int and draws >= 1)
        require(valid, owner, "mean_draws", draws, "a positive integer or None")
        constants = self.constants
        known = constants is None or isinstance(constants, Constants) or constants == ESTIMATE
        require(known, owner, "constants", constants, 'fedsys.Constants(...) or "estimate"')
        return Hosted(
            site,
            HostedData(owner, site, self.client_data),
            Draws(owner, site, self.samples, self.batch_size, self.sampling),
            self.per_batch,
            self.batched,
            self.vectorize,
            self.rng,
            self.mean_draws,
        )
