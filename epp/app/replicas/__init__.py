"""The exchange with other replicas of this picker, for one pool."""
