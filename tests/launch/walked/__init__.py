"""Find which of our functions the processes of a run call; see sitecustomize.py."""
