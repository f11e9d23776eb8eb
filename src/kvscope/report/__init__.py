"""10. What is shown: one page, and the same findings as text."""
