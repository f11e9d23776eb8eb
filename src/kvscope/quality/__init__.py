"""6. Does it still answer: documents with planted facts, questions about them, and how an answer is read."""
