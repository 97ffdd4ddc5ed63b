"""Flow control: which requests wait in the picker, and which of them goes next, and where."""
