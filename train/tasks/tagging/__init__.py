"""What named-entity recognition is made of: its samples and its metric."""
