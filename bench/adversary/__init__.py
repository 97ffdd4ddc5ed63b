"""The campaign `adversary`: attacks on a picker, each with bounds on what others feel of it."""
