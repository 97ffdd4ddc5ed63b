"""What the operating system is asked for, by adapters and commands alike."""
