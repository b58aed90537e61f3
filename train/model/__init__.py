"""Settings of a model: precision, random numbers, dropout."""
