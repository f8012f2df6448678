"""What is imported when, and torchvision beside a torch that its operators do not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import json, sys
import fedsys, fedsys.training.api

heavy = ["torchvision", "sklearn", "matplotlib", "torchmetrics", "tensorboard", "wandb", "mlflow"]
answer = {"imported": [name for name in heavy if name in sys.modules]}

import torch
from fedsys.system import compat

vision = compat.torchvision()
answer["again"] = compat.torchvision() is vision is sys.modules["torchvision"]

from torchvision import datasets, models, transforms

image = torch.arange(3 * 16 * 16, dtype=torch.uint8).reshape(3, 16, 16)
pipeline = transforms.Compose([
    transforms.ConvertImageDtype(torch.float32),
    transforms.CenterCrop(8),
    transforms.Normalize([0.5] * 3, [0.5] * 3),
])
answer["transformed"] = list(pipeline(image).shape)
answer["range"] = [float(pipeline(image).min()) >= -1, float(pipeline(image).max()) <= 1]
answer["output"] = list(models.resnet18(num_classes=2)(torch.zeros(2, 3, 32, 32)).shape)
answer["datasets"] = [hasattr(datasets, name) for name in ("MNIST", "FashionMNIST", "CIFAR10")]
scores, labels = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])
answer["auc"] = float(compat.torchmetrics().binary_auroc(scores, labels))
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """What a fresh process finds."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_importing_fedsys_imports_nothing_that_a_run_may_not_need(answer: dict[str, Any]) -> None:
    assert answer["imported"] == []


def test_torchvision_imports_here_once(answer: dict[str, Any]) -> None:
    assert answer["again"] is True


def test_its_transforms_models_and_datasets_work(answer: dict[str, Any]) -> None:
    assert answer["transformed"] == [3, 8, 8]
    assert answer["range"] == [True, True]
    assert answer["output"] == [2, 2]
    assert answer["datasets"] == [True] * 3


def test_torchmetrics_works_beside_it(answer: dict[str, Any]) -> None:
    assert answer["auc"] == pytest.approx(0.75)
