"""What runs are doing, in words and in one table."""
