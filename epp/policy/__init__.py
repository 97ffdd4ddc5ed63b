"""What to do about it. Pure functions of a request and its candidates."""
