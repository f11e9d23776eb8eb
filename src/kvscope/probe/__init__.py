"""5. What is watched: processes and devices in, timestamped samples out."""
