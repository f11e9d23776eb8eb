"""What it should cost: ModelSpec + Scenario → Prediction. Pure arithmetic: no files, no engines, no other packages."""
