"""Binary tasks from folders of pictures, in the layout they are published in.

None of these sets may be passed on: each has a page where one agrees to its terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedsys.core.errors import require
from fedsys.data.dataset import Scaling
from fedsys.data.formats import labels_in, numbers_in
from fedsys.data.sources.image_files import Listing, PictureSource, SplitPictureSource


@dataclass(frozen=True, kw_only=True)
class CheXpert(PictureSource):
    """Chest X-rays (Irvin et al. 2019); abnormal, without the label "No Finding", is positive.

    Args:
        target: "abnormal", or a finding of the table, such as "Cardiomegaly".
        uncertain: what a finding marked -1 is: "positive", "negative" or "left_out".
        frontal: whether to leave out lateral views.
    """

    target: str = "abnormal"
    uncertain: str = "positive"
    frontal: bool = True

    name: ClassVar[str] = "chexpert"
    top: ClassVar[str] = "CheXpert-v1.0-small"
    layout: ClassVar[str] = "{train.csv, valid.csv, train/patient*/study*/*.jpg, valid/...}"
    page: ClassVar[str] = "the Stanford AIMI page of CheXpert"
    channels: ClassVar[int] = 1
    scaling: ClassVar[Scaling] = Scaling((0.5,), (0.25,))

    def __post_init__(self) -> None:
        super().__post_init__()
        ways = ("positive", "negative", "left_out")
        require(self.uncertain in ways, self.name, "uncertain", self.uncertain, " or ".join(ways))

    def listings(self, folder: Path) -> tuple[Listing, Listing]:
        """train.csv and valid.csv."""
        return self._listing(folder, "train.csv"), self._listing(folder, "valid.csv")

    def _listing(self, folder: Path, table: str) -> Listing:
        path = folder / table
        rows = self.table(path, ("Path", "Frontal/Lateral", "No Finding"))
        if self.frontal:
            rows = [row for row in rows if row["Frontal/Lateral"] == "Frontal"]
            require(bool(rows), self.name, "frontal", True, f"false: {path} has no frontal view")
        column = "No Finding" if self.target == "abnormal" else self.target
        if column not in rows[0]:
            findings = [name for name in rows[0] if name not in _NOT_FINDINGS]
            rule = f"abnormal or one of {', '.join(findings)}"
            require(False, self.name, "target", self.target, rule)
        # 1 found, 0 or nothing not found, -1 uncertain.
        marks = numbers_in(path, column, [row[column] or 0 for row in rows])
        if self.uncertain == "left_out":
            rows = [row for row, mark in zip(rows, marks, strict=True) if mark >= 0]
            marks = marks[marks >= 0]
        found = (marks > 0) | ((marks < 0) & (self.uncertain == "positive"))
        labels = (~found if self.target == "abnormal" else found).astype(np.int64)
        # The paths of the table begin with the name of the folder.
        paths = [self.inside(folder.parent, row["Path"], path) for row in rows]
        return Listing(paths, labels, labels)


_NOT_FINDINGS = ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", "No Finding")


@dataclass(frozen=True, kw_only=True)
class Melanoma(SplitPictureSource):
    """Skin lesions of SIIM-ISIC 2020 (Rotemberg et al. 2021); malignant, 1.8 %, is positive.

    Table 4 of Zhang et al. (NeurIPS 2023) has 985 positives of 33,536 samples; the published data
    has 584 of 33,126, and is taken as it is.
    """

    name: ClassVar[str] = "melanoma"
    top: ClassVar[str] = "siim-isic-melanoma-classification"
    layout: ClassVar[str] = "{train.csv, jpeg/train/*.jpg}"
    page: ClassVar[str] = "Kaggle's competition siim-isic-melanoma-classification"

    def listing(self, folder: Path) -> Listing:
        """train.csv."""
        path = folder / "train.csv"
        rows = self.table(path, ("image_name", "target"))
        labels = labels_in(path, "target", [row["target"] for row in rows], ("0", "1"))
        pictures = folder / "jpeg" / "train"
        paths = [self.inside(pictures, f"{row['image_name']}.jpg", path) for row in rows]
        return Listing(paths, labels, labels)


@dataclass(frozen=True, kw_only=True)
class CatsVsDogs(SplitPictureSource):
    """25,000 photographs of cats, and of dogs, which are positive."""

    name: ClassVar[str] = "cats_vs_dogs"
    top: ClassVar[str] = "dogs-vs-cats"
    layout: ClassVar[str] = "train/{cat,dog}.*.jpg"
    page: ClassVar[str] = "Kaggle's competition dogs-vs-cats"

    def listing(self, folder: Path) -> Listing:
        """The pictures by their names."""
        kinds = [sorted((folder / "train").glob(f"{kind}.*.jpg")) for kind in ("cat", "dog")]
        for kind, paths in zip(("cat", "dog"), kinds, strict=True):
            if not paths:
                raise self.missing(folder / "train" / f"{kind}.*.jpg")
        labels = np.repeat(np.arange(2), [len(paths) for paths in kinds])
        return Listing([*kinds[0], *kinds[1]], labels, labels)


@dataclass(frozen=True, kw_only=True)
class ImageNet(PictureSource):
    """Photographs of ILSVRC 2012: animals against machines, which are positive.

    Huang et al. (AISTATS 2024), arXiv:2211.07303, Section 6.2, do not name the classes. Here,
    animals are the first 398 of the 1,000 classes, up to n02655020; machines are the 31 classes of
    motor vehicles, trains and aeroplanes.

    Args:
        positive: names of class folders, or None for the machines.
        negative: the same, or None for the animals.
    """

    positive: Sequence[str] | None = None
    negative: Sequence[str] | None = None

    name: ClassVar[str] = "imagenet"
    top: ClassVar[str] = "imagenet"
    layout: ClassVar[str] = "{train,val}/n*/*.JPEG"
    page: ClassVar[str] = "the ImageNet page (ILSVRC 2012)"

    def listings(self, folder: Path) -> tuple[Listing, Listing]:
        """train/ and val/."""
        return self._listing(folder / "train"), self._listing(folder / "val")

    def _listing(self, folder: Path) -> Listing:
        names = sorted(path.name for path in folder.glob("n*") if path.is_dir())
        positive = set(self.positive or _MACHINES)
        is_animal = {name for name in names if name <= _LAST_ANIMAL}
        negative = set(self.negative) if self.negative else is_animal - positive
        paths: list[Path] = []
        labels: list[int] = []
        classes: list[int] = []
        for number, name in enumerate(names):
            if name in positive | negative:
                found = sorted((folder / name).glob("*.JPEG"))
                paths += found
                labels += [int(name in positive)] * len(found)
                classes += [number] * len(found)
        for side, members in ((1, positive), (0, negative)):
            if side not in labels:
                raise self.missing(folder / (min(members) if members else "n*") / "*.JPEG")
        return Listing(paths, np.array(labels), np.array(classes))


_LAST_ANIMAL = "n02655020"
_MACHINES = (
    *("n02690373", "n02701002", "n02814533", "n02930766", "n03100240", "n03345487", "n03393912"),
    *("n03417042", "n03444034", "n03445924", "n03594945", "n03670208", "n03770679", "n03777568"),
    *("n03785016", "n03791053", "n03796401", "n03895866", "n03930630", "n03977966", "n04037443"),
    *("n04065272", "n04146614", "n04285008", "n04310018", "n04335435", "n04461696", "n04465501"),
    *("n04467665", "n04487081", "n04552348"),
)
