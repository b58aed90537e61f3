"""Parts of named-entity recognition: its samples and its metric."""
