"""What the nine GLUE tasks share: their files, tokens, batches and models."""
