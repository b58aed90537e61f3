"""What runs are doing, in words and as documents of `--json`."""
