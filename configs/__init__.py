"""The settings of a run: typed, validated, and without torch, so a login node can check them."""
