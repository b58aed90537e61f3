"""The agents of a run meet, exchange signs of life, and start and stop together."""
