"""Settings of a model: optimizer, precision, random numbers."""
