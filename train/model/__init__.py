"""What is done to a model: optimizer, precision, compilation, random numbers."""
