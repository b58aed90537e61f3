"""Predict the time of a step from measured links and processors; needs no torch."""
