"""What the image tasks share: their files, samples and models."""
