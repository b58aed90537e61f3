"""The agents of a run meet, hear from each other, and start and stop together."""
