"""What clients can compute on their own data: the oracles that algorithms are written against.

Axes: C hosted clients, M all clients, d variables. A point is [C, d]: a row per hosted client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from torch import Tensor

from fedsys.communication import Sync
from fedsys.problems.constants import Constants
from fedsys.problems.site import Site

Draw = Any
"""A random sample for each hosted client. Only the oracle that made it looks inside."""


@runtime_checkable
class Oracle(Protocol):
    """What the runner needs of every oracle.

    Attributes:
        step: the iteration whose draws come next.
        rider: rows [C, b] to be averaged along with each round (BatchNorm), or None.
        sizes: how much data each hosted client has.
        finite_sum: whether a draw is a sample of the client's data.
    """

    step: int
    rider: Tensor | None
    sizes: list[int]
    uses_autograd: bool

    @property
    def finite_sum(self) -> bool:
        """Whether a draw is a sample of the client's data."""

    def at(self, step: int) -> Self:
        """The same oracle at the beginning of iteration `step`."""

    def at_start(self) -> Self:
        """The same oracle before the first iteration, with draws of its own."""

    def draw(self) -> Draw:
        """The next sample of this step, for each hosted client."""

    def constants(self, sync: Sync) -> Constants | None:
        """The constants of the theory, or None if nobody knows them."""

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """The problem's metrics at the mean point, given as rows [C, d] that are all equal."""

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """A point [d], cut into its variables by name."""


@runtime_checkable
class Variational(Oracle, Protocol):
    """Find z with F(z) = 0, F the mean of the clients' operators F_m."""

    z0: Tensor

    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        """F_m(z_m; xi_m)."""

    def full_operator(self, z: Tensor) -> Tensor:
        """F_m(z_m)."""

    def prox(self, z: Tensor, step: float) -> Tensor:
        """The proximal map of the composite terms or constraints; the identity without."""

    def mirror(self, z: Tensor, weight: float) -> Tensor:
        """The mirror map from the dual to the primal space, with weighted terms."""

    def normal(self) -> Tensor:
        """A standard normal vector for each hosted client, as a draw of its own."""


@runtime_checkable
class Minimax(Oracle, Protocol):
    """min over x, max over y of the mean of the clients' f_m(x, y)."""

    x0: Tensor
    y0: Tensor

    def grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """The gradients of f_m(x_m, y_m; xi_m) in x and in y."""

    def full_grads(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of f_m(x_m, y_m), on all of client m's data."""

    def prox_x(self, x: Tensor, step: float) -> Tensor:
        """The proximal map of the min player's term; the identity without."""

    def prox_y(self, y: Tensor, step: float) -> Tensor:
        """The proximal map of the max player's term; the identity without."""


@runtime_checkable
class Minimisation(Oracle, Protocol):
    """min over x of the mean of the clients' f_m(x)."""

    x0: Tensor

    def grad(self, x: Tensor, xi: Draw) -> Tensor:
        """The gradient of f_m(x_m; xi_m): a new tensor, its caller's to overwrite."""


Pullback = Callable[[Tensor], Tensor]
"""v -> J'v, J the Jacobian of a function where it was evaluated."""


@runtime_checkable
class Compositional(Oracle, Protocol):
    """min over x, max over y of the mean of the clients' f_m(g(x), y), g the mean of their g_m."""

    x0: Tensor
    y0: Tensor

    def inner(self, x: Tensor, xi: Draw) -> tuple[Tensor, Pullback]:
        """g_m(x_m; xi_m), and the product of its transposed Jacobian with any vectors v_m."""

    def outer_grads(self, h: Tensor, y: Tensor, zeta: Draw) -> tuple[Tensor, Tensor]:
        """The gradients of f_m(h_m, y_m; zeta_m) in h and in y."""


class Curvature(Protocol):
    """The second derivatives of g_m at one point and sample; all products share its graph."""

    def hessian_product(self, v: Tensor) -> Tensor:
        """grad_yy g_m times v_m: [C, dy]."""

    def cross_product(self, v: Tensor) -> Tensor:
        """grad_xy g_m times v_m: [C, dx]."""


@runtime_checkable
class Bilevel(Oracle, Protocol):
    """min over x of the mean of f_m(x, y_m(x)), y_m(x) the minimiser of g_m(x, .) of client m."""

    x0: Tensor
    y0: Tensor

    def outer_draw(self) -> Draw:
        """The next sample of f in this step; `draw` gives those of g."""

    def inner_grad(self, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        """grad_y g_m(x_m, y_m; xi_m)."""

    def outer_grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """The gradients of f_m(x_m, y_m; xi_m) in x and in y."""

    def curvature(self, x: Tensor, y: Tensor, xi: Draw) -> Curvature:
        """The second derivatives of g_m(x_m, y_m; xi_m)."""

    def prox_x(self, x: Tensor, step: float) -> Tensor:
        """The proximal map of the outer variable's term; the identity without."""


@runtime_checkable
class Grouped(Minimisation, Protocol):
    """Minimisation over samples that belong to one of K groups.

    Attributes:
        group_shares: [C, K], the part of each group in each hosted client's data.
    """

    group_shares: Tensor

    def weighted_grad(self, x: Tensor, w: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """The gradient with weight w_m[a] [C, K] on group a, and each group's part of the loss.

        The parts [C, K] are without weights and sum up to the mean loss.
        """

    def loss_and_grad(self, x: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """f_m(x_m; xi_m) [C], and its gradient."""

    def disparity_and_grad(self, x: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """How unequally the groups are treated [C], made differentiable, and its gradient."""


@runtime_checkable
class Reporting(Protocol):
    """An oracle with more to tell than numbers that change from record to record."""

    def describe(self) -> dict[str, Any]:
        """What was done to the data, as JSON; for data.json in the run directory."""

    def report(self, z: Tensor, sync: Sync) -> dict[str, Any]:
        """A closer look at the final point, as JSON; for report.json in the run directory."""


KINDS: dict[str, type] = {
    "variational": Variational,
    "minimax": Minimax,
    "minimisation": Minimisation,
    "compositional": Compositional,
    "bilevel": Bilevel,
    "grouped": Grouped,
}
"""The kinds of problem, by the name that errors use."""


AnyOracle = TypeVar("AnyOracle", bound=Oracle, covariant=True)


class Problem(Protocol[AnyOracle]):
    """What a configuration of the group `problem` builds: it makes the oracle of any site."""

    def oracle(self, site: Site) -> AnyOracle:
        """The oracle of the clients hosted at a site."""
