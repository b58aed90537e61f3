"""What a step should cost, from what links and processors were measured to do; needs no torch."""
