"""Training loops as they are commonly written, to compare with; each file runs as one worker."""
