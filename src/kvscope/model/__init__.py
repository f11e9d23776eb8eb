"""1. What the model is: files in, ModelSpec out."""
