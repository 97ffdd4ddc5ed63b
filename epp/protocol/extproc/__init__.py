"""ext_proc: one stream as a state machine, its messages, and their encoding."""
