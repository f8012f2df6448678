"""Data sets, their partition over clients, and the batches that clients draw."""

from fedsys.data.batches import Batch, Batches
from fedsys.data.dataset import Dataset, DatasetSource, Imbalance, Scaling
from fedsys.data.embedded import BreastCancer, Digits
from fedsys.data.images import CatsVsDogs, CheXpert, ImageNet, Melanoma
from fedsys.data.medmnist import PneumoniaMNIST
from fedsys.data.partition import IID, Deal, Dirichlet, Disjoint, Group, Partition, PowerLaw
from fedsys.data.tables import Adult, German, GroupedDataset
from fedsys.data.vision import CIFAR10, CIFAR100, MNIST, STL10, FashionMNIST

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IID",
    "MNIST",
    "STL10",
    "Adult",
    "Batch",
    "Batches",
    "BreastCancer",
    "CatsVsDogs",
    "CheXpert",
    "Dataset",
    "DatasetSource",
    "Deal",
    "Digits",
    "Dirichlet",
    "Disjoint",
    "FashionMNIST",
    "German",
    "Group",
    "GroupedDataset",
    "ImageNet",
    "Imbalance",
    "Melanoma",
    "Partition",
    "PneumoniaMNIST",
    "PowerLaw",
    "Scaling",
]
