"""Sources of samples: files of known forms, the Hub, and the cache of both."""
