"""The model of the pods and their caches. Pure and synchronous: no I/O, no clock, no log."""
