"""What runs are doing, in words and as `--json` documents."""
