"""A run written to disk so that it can be continued, whatever happens while it is written."""
