"""7. How it is measured: designs, trials, the resumable loop."""
