"""Data sets, their partition over clients, and the batches that clients draw."""

from fedsys.data.batches import Batch, Batches
from fedsys.data.dataset import Dataset, DatasetSource, Imbalance, Scaling
from fedsys.data.embedded import Digits
from fedsys.data.partition import IID, Deal, Dirichlet, Disjoint, Group, Partition, PowerLaw

__all__ = [
    "IID",
    "Batch",
    "Batches",
    "Dataset",
    "DatasetSource",
    "Deal",
    "Digits",
    "Dirichlet",
    "Disjoint",
    "Group",
    "Imbalance",
    "Partition",
    "PowerLaw",
    "Scaling",
]
