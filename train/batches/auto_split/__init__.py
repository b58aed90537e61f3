"""Unequal workers get unequal parts of each batch, so that all end a step at once."""
