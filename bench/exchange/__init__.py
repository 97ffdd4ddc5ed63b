"""What a request costs in instructions: the picker in one process, without sockets or time."""
