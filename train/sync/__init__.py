"""Average the gradients over all ranks."""
