"""Make the gradients of all ranks their mean."""
