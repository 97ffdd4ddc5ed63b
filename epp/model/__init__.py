"""What we believe about the pods. Pure and synchronous: no I/O, no clock, no log."""
