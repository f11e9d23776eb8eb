"""3. What it should cost: ModelSpec and Scenario in, Prediction out. Pure: no input, no output."""
