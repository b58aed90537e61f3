"""What is done to a model: optimizer, precision, random numbers."""
