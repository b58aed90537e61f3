"""The model's metrics, over all ranks."""
