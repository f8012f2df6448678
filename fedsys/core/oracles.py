"""Oracles: what clients compute on their own data, for algorithms to call.

An algorithm never sees data, networks or losses. Its `init` and `step` get an oracle, which
evaluates the functions of the problem (operators, gradients, Jacobian products) for all clients
that this rank hosts, and a `Sync`, which communicates. A problem builds its oracle once per rank
with `Problem.oracle(site)`. Each kind of problem has a protocol below; an algorithm names the one
it is written for in `Algorithm.kind`, and an oracle serves every kind whose protocol it satisfies.
To write an oracle, derive it from `fedsys.problems.stepping.SteppingOracle`, which implements the
counting of draws, or build the problem from functions with `fedsys.problems.custom`.

Shapes: C is the number of clients that this rank hosts, M the number of all clients, d the number
of variables. A point is [C, d] and row c belongs to client `site.hosted[c]`. Row c of a result
depends on row c of the arguments and on that client's data only, so that a result does not depend
on where a client is hosted. Starting points (`z0` [C, d], or `x0` [C, dx] and `y0` [C, dy]) are
points as well. Tensors have the dtype and device of the site.

Calls: inside `init` and `step`, an algorithm reads the starting point (`z0`, or `x0` and `y0`) and
calls `draw`, `outer_draw`, `normal` and the methods of its kind. All other members are for the
runner: `at`, `initial`, `constants`, `evaluate`, `named`, and the optional protocols `Reporting`,
`Estimated` and `Stateful`. Calls are local; only the methods that take a `sync` communicate, and
the runner makes those calls on all ranks in the same order. Methods do not modify their arguments.
A result may be a view or one of the arguments itself: do not write to it in place, unless the
method says that it returns a new tensor.

Randomness: all of it is in the draws. The k-th draw of iteration t is a function of (seed, client,
t, k), never of the rank or of earlier draws, so the order of the calls of `draw` in a step is part
of the algorithm. Given its arguments and the draw, every other method is deterministic. One draw
can be passed to several calls: `xi = oracle.draw(); oracle.grad(x, xi) - oracle.grad(last_x, xi)`
is the difference of two gradients at the same samples.

Counting: an oracle counts the draws of the current iteration and, if it is derived from
`SteppingOracle`, the evaluations of operators and gradients, which records have as `oracle_calls`.
Traffic is counted by the communicator: calls of an oracle cost no bytes and no rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from torch import Tensor

from fedsys.core.constants import Constants
from fedsys.core.metrics import Record
from fedsys.core.site import Site
from fedsys.core.sync import Sync

StepSize: TypeAlias = float | Tensor
"""A step size for all coordinates, or one for each coordinate [C, n]."""

Draw = Any
"""A random sample for each hosted client, opaque to everything but the oracle that drew it."""


@runtime_checkable
class Oracle(Protocol):
    """The members that every oracle has, whatever the kind of its problem.

    Attributes:
        step: the iteration of the next draw.
        synchronised_buffers: rows [C, b] that are averaged with the first exchange of each round
            (the running statistics of BatchNorm), or None.
        sizes: the number of samples of each hosted client, for means weighted by size.
        uses_autograd: whether methods call autograd; without it, torch.inference_mode() is on.
    """

    step: int
    synchronised_buffers: Tensor | None
    sizes: list[int]
    uses_autograd: bool

    @property
    def finite_sum(self) -> bool:
        """Whether a draw is a sample of the client's data, rather than the full data or noise."""

    def at(self, step: int) -> Self:
        """Return this oracle at the start of iteration `step`; the copy shares its data."""

    def initial(self) -> Self:
        """Return this oracle for `Algorithm.init`; it shares no draw with any iteration."""

    def draw(self) -> Draw:
        """Return the next random sample of this iteration, one for each hosted client."""

    def constants(self, sync: Sync) -> Constants | None:
        """Return the constants that theorems use, over all clients; None if they are unknown."""

    def evaluate(self, z: Tensor, sync: Sync) -> Record:
        """Return the metrics of the problem at a point [C, d], the same on all ranks.

        The rows hold the mean over all clients, except for entries that a client keeps to itself
        (`Algorithm.private_size`), which are its own. The exchanges are not counted as traffic.
        """

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """Return the variables of a point [d] by name, in their own shapes.

        Given the points of all clients [M, d], a variable that clients keep to themselves has the
        client axis first, and a shared variable is that of the first row.
        """


@runtime_checkable
class Variational(Oracle, Protocol):
    """Find z with F(z) = 0, F the mean of the clients' F_m (or solve the VI, with a term)."""

    z0: Tensor

    def operator(self, z: Tensor, xi: Draw) -> Tensor:
        """Return F_m(z_m; xi_m) [C, d]."""

    def full_operator(self, z: Tensor) -> Tensor:
        """Return F_m(z_m) [C, d], the exact mean over all of client m's data.

        An algorithm that calls it declares `needs_full_operator`; see `Estimated`.
        """

    def prox(self, z: Tensor, step: float) -> Tensor:
        """Return the proximal map of `step` times the terms at z; without a term, z itself."""

    def mirror(self, z: Tensor, weight: float) -> Tensor:
        """Return argmax_u <z, u> - h(u) - weight * phi(u), for the term phi and mirror map h."""

    def normal(self) -> Tensor:
        """Return a standard normal vector for each hosted client, [C, d]; it counts as a draw."""


@runtime_checkable
class Minimax(Oracle, Protocol):
    """Minimise over x and maximise over y the mean of the clients' f_m(x, y)."""

    x0: Tensor
    y0: Tensor

    def grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """Return the gradients of f_m(x_m, y_m; xi_m) in x [C, dx] and in y [C, dy]."""

    def full_grads(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of f_m(x_m, y_m) on all of client m's data, as `full_operator`."""

    def prox_x(self, x: Tensor, step: StepSize) -> Tensor:
        """Return the proximal map of the min player's term at x; without a term, x itself.

        An adaptive algorithm passes a step size for each coordinate [C, dx].
        """

    def prox_y(self, y: Tensor, step: StepSize) -> Tensor:
        """Return the proximal map of the max player's term at y; without a term, y itself."""


@runtime_checkable
class Minimisation(Oracle, Protocol):
    """Minimise over x the mean of the clients' f_m(x)."""

    x0: Tensor

    def grad(self, x: Tensor, xi: Draw) -> Tensor:
        """Return the gradient of f_m(x_m; xi_m) [C, d], a new tensor that may be overwritten."""


Pullback = Callable[[Tensor], Tensor]
"""The map v -> J'v, where J is the Jacobian of a function at the point of evaluation."""


@runtime_checkable
class Compositional(Oracle, Protocol):
    """Minimise over x and maximise over y the mean of f_m(g(x), y), g the mean of the g_m."""

    x0: Tensor
    y0: Tensor

    def inner(self, x: Tensor, xi: Draw) -> tuple[Tensor, Pullback]:
        """Return g_m(x_m; xi_m) [C, dg], and the map from v [C, dg] to J_m'v_m [C, dx]."""

    def outer_grads(self, h: Tensor, y: Tensor, zeta: Draw) -> tuple[Tensor, Tensor]:
        """Return the gradients of f_m(h_m, y_m; zeta_m) in h [C, dg] and in y [C, dy]."""


class Curvature(Protocol):
    """The second derivatives of g_m at one point and sample; all products share one graph."""

    def hessian_product(self, v: Tensor) -> Tensor:
        """Return grad_yy g_m times v_m [C, dy], for v [C, dy]."""

    def cross_product(self, v: Tensor) -> Tensor:
        """Return grad_xy g_m times v_m [C, dx], for v [C, dy]."""


@runtime_checkable
class Bilevel(Oracle, Protocol):
    """Minimise over x the mean of f_m(x, y_m(x)), where y_m(x) minimises client m's g_m(x, .)."""

    x0: Tensor
    y0: Tensor

    def outer_draw(self) -> Draw:
        """Return the next random sample of f in this iteration; `draw` returns those of g."""

    def inner_grad(self, x: Tensor, y: Tensor, xi: Draw) -> Tensor:
        """Return grad_y g_m(x_m, y_m; xi_m) [C, dy]."""

    def outer_grads(self, x: Tensor, y: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """Return the gradients of f_m(x_m, y_m; xi_m) in x [C, dx] and in y [C, dy]."""

    def curvature(self, x: Tensor, y: Tensor, xi: Draw) -> Curvature:
        """Return the second derivatives of g_m(x_m, y_m; xi_m), as products with vectors."""

    def prox_x(self, x: Tensor, step: StepSize) -> Tensor:
        """Return the proximal map of the outer variable's term; without a term, x itself."""


@runtime_checkable
class SharedBilevel(Bilevel, Protocol):
    """Minimise over x the mean of f_m(x, y(x)), where y(x) minimises the mean of the g_m(x, .).

    The derivatives are those of `Bilevel`, but the objective is another: an oracle that has the
    attribute `shared_inner` does not serve algorithms of the kind `bilevel` (see `kinds_of`).
    """

    shared_inner: bool


@runtime_checkable
class Grouped(Minimisation, Protocol):
    """Minimisation over samples, each of which belongs to one of K groups.

    Attributes:
        group_shares: [C, K], the fraction of each group in each hosted client's data.
    """

    group_shares: Tensor

    def weighted_grad(self, x: Tensor, w: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """Return the gradient with weight w_m[a] on group a, and each group's part of the loss.

        The weights are [C, K]. The parts [C, K] are unweighted and sum to the mean loss.
        """

    def loss_and_grad(self, x: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """Return f_m(x_m; xi_m) [C], and its gradient [C, d]."""

    def disparity_and_grad(self, x: Tensor, xi: Draw) -> tuple[Tensor, Tensor]:
        """Return a differentiable measure of unequal treatment [C], and its gradient [C, d]."""


@runtime_checkable
class Monitored(Oracle, Protocol):
    """Minimise over x the mean of f_m(x; alpha), where alpha weights the classes of samples."""

    x0: Tensor

    def class_grad(self, x: Tensor, alpha: Tensor, xi: Draw) -> Tensor:
        """Return the gradient of f_m(x_m; alpha, xi_m); all rows of alpha [C, classes] agree."""

    def class_weights(self, x: Tensor, lr: float, momentum: float, steps: int) -> Tensor:
        """Return alpha [classes] for a point x [d], from `steps` steps on each class alone.

        It runs on the server, which has auxiliary samples of each class and does not know how many
        the clients have.
        """


@runtime_checkable
class Reporting(Protocol):
    """An oracle with a description of its data and a report on the final point."""

    def describe(self) -> dict[str, Any]:
        """Return how the data were prepared, as JSON, for data.json in the run directory."""

    def report(self, z: Tensor, sync: Sync) -> dict[str, Any]:
        """Return an analysis of the final point, as JSON, for report.json in the run directory.

        The lines under "remarks" and "warnings" are printed at the end of the run.
        """


@runtime_checkable
class Estimated(Protocol):
    """An oracle whose full operator may be unknown, because its functions are known by draws."""

    def unknown_mean(self) -> str | None:
        """Return why the full operator is unknown, or None if it is exact."""


@runtime_checkable
class Stateful(Protocol):
    """An oracle of modules whose evaluation needs more than variables, such as BatchNorm."""

    def trained(self, z: Tensor, sync: Sync) -> dict[str, Tensor]:
        """Return the variables of a point [d] and the buffers it is evaluated with, by name."""


AnyOracle = TypeVar("AnyOracle", bound=Oracle, covariant=True)


class Problem(Protocol[AnyOracle]):
    """A factory of oracles, which a configuration of the group `problem` builds."""

    def oracle(self, site: Site) -> AnyOracle:
        """Return the oracle of the clients hosted at `site`; every rank calls it once."""
