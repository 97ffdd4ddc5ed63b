"""What it is worth that requests wait in the picker while none has room, and what it costs."""
