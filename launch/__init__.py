"""Settings and machines become one supervised run; nothing here needs torch."""
