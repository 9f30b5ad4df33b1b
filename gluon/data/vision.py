"""`mz.gluon.data.vision`: datasets of images, and their transforms, under Gluon's names."""

from __future__ import annotations

from ...data import transforms
from ...data.classic import CIFAR10, CIFAR100, MNIST
from ...data.image_sets import ImageFolderDataset, ImageListDataset, ImageRecordDataset

FashionMNIST = MNIST  # its files have the same names

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "MNIST",
    "FashionMNIST",
    "ImageFolderDataset",
    "ImageListDataset",
    "ImageRecordDataset",
    "transforms",
]
