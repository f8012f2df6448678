"""The registry of test cases: every algorithm on at least one problem.

A new algorithm adds one line to CASES. The tests of the contract, of placement and of resuming run
for each case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsys.algorithms import (
    CDMA,
    CODASCA,
    EG,
    FCFL,
    FGDA,
    GDA,
    LDE,
    LESGD,
    LIPPAX,
    LSGD,
    SAGDA,
    SLIPPAX,
    AdaBelief,
    AdaFGDA,
    Averaged,
    CoDA,
    FedAvg,
    FedBiO,
    FedBiOAcc,
    FedGDAGT,
    FedMinMax,
    FedNest,
    FedNestBilevel,
    FedProx,
    FedReg,
    LocalSCGDAM,
    LocalSEG,
    LocalSGDA,
    LocalSGDAM,
    LocalSGDAPlus,
    LocalSGDM,
    LocalSGDMRL,
    MomentumLocalSGDA,
    MomentumLocalSGDAPlus,
    ProxSkip,
    ProxSkipLSVRGDA,
    Scaffold,
)
from fedsys.algorithms.averaged import averaged
from fedsys.communication import Communicator, Transport
from fedsys.core.algorithm import Algorithm, State
from fedsys.core.oracles import Oracle, Problem
from fedsys.core.placement import Placement
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.data import Dataset, GroupedDataset, Imbalance
from fedsys.models import MLP
from fedsys.problems import (
    BinaryClassification,
    Classification,
    CompositeSaddle,
    CompositionalAUC,
    DeepAUC,
    GroupFair,
    MonitoredRatioLoss,
    NeumannHypergradient,
    PolicemanBurglar,
    QuadraticBilevel,
    QuadraticGame,
    RobustNetwork,
    SharedQuadraticBilevel,
)
from fedsys.training.api import default_communicator
from support.toys import CoinToy, ServerToy

CLIENTS = 6
SEED = 3


@dataclass(frozen=True)
class Clouds:
    """Four overlapping Gaussian classes of equal size: 240 training and 60 test samples."""

    width: int = 5

    def load(self) -> Dataset:
        """Draw the samples."""
        stream = np.random.default_rng(0)
        labels = np.arange(300) % 4
        centres = stream.standard_normal((4, self.width))
        points = centres[labels] + stream.standard_normal((300, self.width))
        inputs, targets = torch.from_numpy(points), torch.from_numpy(labels)
        return Dataset(inputs[:240], targets[:240], inputs[240:], targets[240:], classes=4)


@dataclass(frozen=True)
class GroupedClouds:
    """Two classes in three groups of different sizes: 210 training and 90 test samples."""

    width: int = 4

    def load(self) -> GroupedDataset:
        """Draw the samples."""
        stream = np.random.default_rng(1)
        groups = np.repeat([0, 1, 2], [150, 90, 60])
        labels = (stream.random(300) < np.array([0.5, 0.4, 0.3])[groups]).astype(np.int64)
        centres = stream.standard_normal((3, 2, self.width))
        points = centres[groups, labels] + stream.standard_normal((300, self.width))
        order = stream.permutation(300)
        inputs, targets, members = (torch.from_numpy(a[order]) for a in (points, labels, groups))
        return GroupedDataset(
            *(inputs[:210], targets[:210], inputs[210:], targets[210:]),
            classes=2,
            train_groups=members[:210],
            test_groups=members[210:],
            group_names=("a", "b", "c"),
            description={},
        )


@dataclass(frozen=True)
class BatchNormNet:
    """A dense model with BatchNorm, whose running statistics are synchronised buffers."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return the network for inputs of this shape."""
        (width,) = input_shape
        return nn.Sequential(
            nn.Linear(width, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, outputs)
        )


@dataclass(frozen=True)
class DropoutNet:
    """A dense model that draws random numbers in its forward pass."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return the network for inputs of this shape."""
        (width,) = input_shape
        return nn.Sequential(nn.Linear(width, 4), nn.Dropout(0.4), nn.Tanh(), nn.Linear(4, outputs))


@dataclass(frozen=True)
class Case:
    """An algorithm on a problem.

    Args:
        algorithm: algorithm with few local steps, so that a short run has several rounds.
        problem: stochastic problem, so that random draws are tested as well.
        exchanges: number of means, server calls and gathers in a communication step.
        initial: number of them in `init`.
    """

    algorithm: Algorithm[Any, Any]
    problem: Problem[Oracle]
    exchanges: int = 1
    initial: int = 0

    @property
    def has_local_steps(self) -> bool:
        """Whether the algorithm has steps without communication."""
        return self.algorithm.schedule != Every(1)


GAME = QuadraticGame(dim=3, samples=5, batch_size=2)
COMPOSITE = CompositeSaddle(dim=3, support=2, heterogeneity=0.5, noise=0.3)
SIMPLEX = PolicemanBurglar(dim=4, noise=0.1)
RARE = Imbalance(0.1)
AUC = DeepAUC(Clouds(), model=MLP(hidden=[3]), batch_size=4, imbalance=RARE)
ROBUST = RobustNetwork(Clouds(), model=MLP(hidden=[3]), batch_size=4)
CLASSES = Classification(Clouds(), model=MLP(hidden=[]), batch_size=4)
STATISTICS = Classification(Clouds(), model=BatchNormNet(), batch_size=4)
COMPOSITIONAL = CompositionalAUC(
    Clouds(), model=MLP(hidden=[3]), batch_size=4, imbalance=RARE, rho=0.3
)
RATIO = BinaryClassification(
    Clouds(), model=MLP(hidden=[3]), batch_size=4, imbalance=RARE, loss="ratio"
)
DROPOUT = DeepAUC(Clouds(), model=DropoutNet(), batch_size=4)
COMPOSITIONAL_DROPOUT = CompositionalAUC(Clouds(), model=DropoutNet(), batch_size=4, rho=0.3)
MONITORED = MonitoredRatioLoss(Clouds(), model=MLP(hidden=[3]), batch_size=4, auxiliary=9)
STAGES = {"local_steps": 3, "decay_at": (0.4, 0.7), "total_steps": 17}
TWO_LEVELS = QuadraticBilevel(dim=3, samples=5, batch_size=2)
SHARED_LEVEL = SharedQuadraticBilevel(dim=3, samples=5, batch_size=2)
FAIR = GroupFair(GroupedClouds(), model=MLP(hidden=[]), batch_size=6, validation_per_group=2)
FAIR_NET = GroupFair(GroupedClouds(), model=MLP(hidden=[3]), batch_size=6, validation_per_group=2)
NEUMANN = NeumannHypergradient(terms=2, lr=0.3)

CASES = {
    "local_sgda-game": Case(LocalSGDA(lr_x=0.2, lr_y=0.1, local_steps=3), GAME),
    "local_sgda-auc": Case(LocalSGDA(lr_x=0.5, lr_y=0.1, local_steps=4), AUC),
    "local_sgda-robust": Case(LocalSGDA(lr_x=0.5, lr_y=2.0, local_steps=4), ROBUST),
    "fedavg-classes": Case(FedAvg(lr=0.3, local_steps=3), CLASSES),
    "fedavg-batchnorm": Case(FedAvg(lr=0.3, local_steps=3), STATISTICS),
    "local_sgda-dropout": Case(LocalSGDA(lr_x=0.5, lr_y=0.1, local_steps=4), DROPOUT),
    "localscgdam-dropout": Case(LocalSCGDAM(**STAGES), COMPOSITIONAL_DROPOUT),
    "lsgd-game": Case(LSGD(lr=0.2, local_steps=3), GAME),
    "lesgd-game": Case(LESGD(lr=0.2, local_steps=3), GAME, exchanges=2),
    "lippax-game": Case(LIPPAX(lr=0.5, inner_lr=0.2, inner_steps=2, local_steps=3), GAME),
    "slippax-game": Case(
        SLIPPAX(lr=0.5, inner_lr=0.2, inner_steps=2, delta=0.1, local_steps=3), GAME
    ),
    "lde-composite": Case(LDE(lr=0.2, local_steps=3), COMPOSITE, exchanges=2),
    "proxskip-simplex": Case(ProxSkip(lr=0.2, p=0.3), SIMPLEX),
    "proxskip_average": Case(ProxSkip(lr=0.2, p=0.3, averages=True), SIMPLEX),
    "averaged-game": Case(
        Averaged(MomentumLocalSGDA(lr_x=0.3, lr_y=0.2, alpha=0.5, beta=1.5, local_steps=3)), GAME
    ),
    "proxskip_saga-game": Case(ProxSkip(lr=0.2, p=0.3, estimator="saga"), GAME),
    "proxskip_quantised-game": Case(ProxSkip(lr=0.2, p=0.3, estimator="quantised"), GAME),
    "proxskip_lsvrgda-game": Case(ProxSkipLSVRGDA(lr=0.2, p=0.3, q=0.2), GAME),
    "local_seg-composite": Case(LocalSEG(lr=0.2, local_steps=3), COMPOSITE),
    "fedgda_gt-game": Case(FedGDAGT(lr=0.2, local_steps=3), GAME, exchanges=2, initial=1),
    "gda-game": Case(GDA(lr=0.2), GAME),
    "eg-game": Case(EG(lr=0.2), GAME, exchanges=2),
    "local_sgda_plus-game": Case(
        LocalSGDAPlus(lr_x=0.2, lr_y=0.1, snapshot_every=6, local_steps=3), GAME
    ),
    "momentum_local_sgda-game": Case(
        MomentumLocalSGDA(lr_x=0.3, lr_y=0.2, alpha=0.5, beta=1.5, local_steps=3), GAME
    ),
    "momentum_local_sgda_plus-game": Case(
        MomentumLocalSGDAPlus(lr_x=0.3, lr_y=0.2, alpha=0.5, beta=1.5, local_steps=3), GAME
    ),
    "fgda-game": Case(
        FGDA(lr_x=0.2, lr_y=0.1, eta=0.9, alpha=0.3, beta=0.2, local_steps=3), GAME, exchanges=2
    ),
    "adafgda-game": Case(
        AdaFGDA(lr_x=0.2, lr_y=0.1, matrix_y=AdaBelief(), local_steps=3),
        GAME,
        exchanges=2,
        initial=1,
    ),
    "sagda-game": Case(
        SAGDA(lr_x=0.2, lr_y=0.1, server_lr=0.9, local_steps=3), GAME, exchanges=2, initial=1
    ),
    "cdma-game": Case(
        CDMA(lr_x=0.2, lr_y=0.1, gradients="sample", local_steps=3), GAME, exchanges=2, initial=1
    ),
    "fednest-game": Case(FedNest(lr_x=0.2, lr_y=0.1, local_steps=2), GAME, exchanges=4),
    "codasca-game": Case(CODASCA(lr_x=0.2, lr_y=0.1, gamma=5.0, stage=6, local_steps=3), GAME),
    "localscgdam-auc": Case(LocalSCGDAM(**STAGES), COMPOSITIONAL),
    "localsgdam-auc": Case(LocalSGDAM(**STAGES, decays="eta"), AUC),
    "coda-auc": Case(CoDA(lr=0.5, prox_weight=0.1, **STAGES), AUC),
    "localsgdm-ratio": Case(LocalSGDM(**STAGES), RATIO),
    "localsgdm_rl-monitor": Case(LocalSGDMRL(**STAGES), MONITORED, initial=1),
    "scaffold-classes": Case(Scaffold(lr=0.3, lr_server=0.9, **STAGES), CLASSES),
    "fedprox-classes": Case(FedProx(lr=0.3, mu=0.1, **STAGES), CLASSES),
    "fedbio-quadratic": Case(
        FedBiO(lr=0.1, inner_lr=0.3, hypergradient=NEUMANN, local_steps=3), TWO_LEVELS
    ),
    "fednest_bilevel-quadratic": Case(
        FedNestBilevel(lr=0.1, inner_lr=0.3, terms=3, neumann_lr=0.8, local_steps=2),
        SHARED_LEVEL,
        exchanges=7,
    ),
    "fedbio-fair": Case(
        FedBiO(lr=0.5, inner_lr=0.3, hypergradient=NEUMANN, fit_from=6, local_steps=3), FAIR_NET
    ),
    "fedbioacc-fair": Case(
        FedBiOAcc(lr=9.0, inner_lr=3.0, hypergradient=NEUMANN, local_steps=3), FAIR
    ),
    "fedreg-fair": Case(FedReg(lr=0.3, weight=0.5, local_steps=3), FAIR),
    "fedminmax-fair": Case(FedMinMax(lr=0.3, weight_lr=0.1), FAIR, initial=1),
    "fcfl-fair": Case(FCFL(lr=0.3, budget=0.05, first_stage=12, temperature=0.5), FAIR),
    "coins-game": Case(CoinToy(lr=0.2, p=0.3, q=0.4), GAME, initial=1),
    "server-game": Case(ServerToy(lr=0.2, local_steps=3), GAME, exchanges=2, initial=1),
    "server-batchnorm": Case(ServerToy(lr=0.2, local_steps=3), STATISTICS, exchanges=2, initial=1),
}


class Drive:
    """The loop of the runner without records and checkpoints."""

    def __init__(
        self,
        case: Case,
        transport: Transport,
        clients: int = CLIENTS,
        first_step: int = 0,
        communicator: Communicator | None = None,
    ) -> None:
        self.algorithm: Algorithm[Any, Any] = averaged(case.algorithm)
        placement = Placement(clients, transport.rank, transport.size)
        kind = case.algorithm.kind
        self.site = Site(placement, seed=SEED, dtype=torch.float64, kind=kind)
        self.oracle = case.problem.oracle(self.site)
        self.communicator = communicator or default_communicator(self.algorithm)
        self.communicator.open(
            transport,
            placement,
            self.algorithm.schedule,
            SEED,
            first_step,
            self.oracle.sizes,
            self.oracle.synchronised_buffers,
        )

    def start(self) -> State:
        """Return the initial state."""
        with torch.no_grad():
            state: State = self.algorithm.init(self.oracle.initial(), self.communicator.initial())
        return state

    def step(self, state: State, step: int) -> tuple[State, Sync]:
        """Return the next state and the sync of the step."""
        sync = self.communicator.at(step)
        with torch.no_grad():
            return self.algorithm.step(state, self.oracle.at(step), sync), sync

    def states(self, steps: int) -> Iterator[State]:
        """Yield the states after 0, 1, ..., `steps` steps."""
        state = self.start()
        yield state
        for step in range(steps):
            state, _ = self.step(state, step)
            yield state
