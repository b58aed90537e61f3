"""What a run is: typed, validated, and free of torch, so that a login node can check it."""
