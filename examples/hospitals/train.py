"""The same as experiment/hospitals.yaml in Python: `python prepare.py`, then torchrun train.py."""

import fedsys
from fedsys.algorithms import AdaFGDA
from fedsys.data import NoPartition, Table
from fedsys.models import MLP

table = Table(
    path="hospitals/hospital-{client}/train.csv",
    test_path="hospitals/hospital-{client}/test.csv",
    label="diagnosis",
    classes=["benign", "malignant"],
)
problem = fedsys.DeepAUC(table, NoPartition(), MLP())
result = fedsys.run(problem, AdaFGDA(), rounds=60, clients=4, evaluate_every=10)
if "test_auc" in result.records[-1]:
    print(f"test AUC {result.records[-1]['test_auc']:.4f}")
