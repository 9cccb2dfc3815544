"""Files of the user's: which of them kfit has written, and may replace or delete."""
