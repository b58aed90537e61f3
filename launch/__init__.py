"""Turn settings and machines into one supervised run; nothing in here needs torch."""
