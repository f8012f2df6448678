"""Running, evaluating and recording: the runner, checkpoints and the run directory."""
