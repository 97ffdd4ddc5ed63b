"""How well policies that compare load route by reports of it, by how often these come."""
