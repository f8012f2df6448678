"""Data sets, their partition over clients, and the batches that clients draw."""

from fedsys.data.batches import Batch, Batches
from fedsys.data.dataset import Dataset, DatasetSource, Imbalance
from fedsys.data.embedded import Digits
from fedsys.data.partition import IID, Partition
from fedsys.data.tables import Adult, German, GroupedDataset, GroupShares

__all__ = [
    "IID",
    "Adult",
    "Batch",
    "Batches",
    "Dataset",
    "DatasetSource",
    "Digits",
    "German",
    "GroupShares",
    "GroupedDataset",
    "Imbalance",
    "Partition",
]
