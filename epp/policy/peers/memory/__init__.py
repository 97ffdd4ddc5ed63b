"""What the policies of peers remember: of what was sent where, and of what came back."""
