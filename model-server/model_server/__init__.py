"""The launcher of a pod's model server, and the simulator that replaces it in tests and demos."""
