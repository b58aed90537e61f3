"""What the image tasks share: their samples and models."""
