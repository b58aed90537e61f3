"""What the tasks on one text or two share: their tokens, batches and models."""
