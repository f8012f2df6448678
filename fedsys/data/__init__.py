"""Data sets, their partition over clients, and the batches that clients draw."""

from fedsys.data.batches import Batch, Batches
from fedsys.data.dataset import Dataset, DatasetSource, Imbalance
from fedsys.data.embedded import Digits
from fedsys.data.partition import IID, Partition

__all__ = [
    "IID",
    "Batch",
    "Batches",
    "Dataset",
    "DatasetSource",
    "Digits",
    "Imbalance",
    "Partition",
]
