"""Write a run to disk so that it can be continued, even if a write is interrupted."""
