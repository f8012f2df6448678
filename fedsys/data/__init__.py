"""Data sets, their partition over clients, and the batches that clients draw."""

from fedsys.data.dataset import Dataset, DatasetSource, Imbalance, Scaling
from fedsys.data.own.images import ImageFolders
from fedsys.data.own.python import ClientDatasets
from fedsys.data.own.source import OwnedSource
from fedsys.data.own.table import Table
from fedsys.data.own.tensors import TensorFiles
from fedsys.data.partition import (
    IID,
    ClientSplit,
    Dirichlet,
    Disjoint,
    Group,
    NoPartition,
    Partition,
    PowerLaw,
)
from fedsys.data.sources.image_folders import CatsVsDogs, CheXpert, ImageNet, Melanoma
from fedsys.data.sources.medmnist import PneumoniaMNIST
from fedsys.data.sources.scikit_learn import BreastCancer, Digits
from fedsys.data.sources.tables import Adult, German, GroupedDataset
from fedsys.data.sources.torchvision_sets import CIFAR10, CIFAR100, MNIST, STL10, FashionMNIST

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IID",
    "MNIST",
    "STL10",
    "Adult",
    "BreastCancer",
    "CatsVsDogs",
    "CheXpert",
    "ClientDatasets",
    "ClientSplit",
    "Dataset",
    "DatasetSource",
    "Digits",
    "Dirichlet",
    "Disjoint",
    "FashionMNIST",
    "German",
    "Group",
    "GroupedDataset",
    "ImageFolders",
    "ImageNet",
    "Imbalance",
    "Melanoma",
    "NoPartition",
    "OwnedSource",
    "Partition",
    "PneumoniaMNIST",
    "PowerLaw",
    "Scaling",
    "Table",
    "TensorFiles",
]
