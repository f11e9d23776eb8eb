"""4. Who runs it: one adapter per engine."""
