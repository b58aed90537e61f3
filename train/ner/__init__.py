"""What named-entity recognition is made of: its files, its tokens and its metric."""
