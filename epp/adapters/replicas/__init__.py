"""Messages to and from the other replicas of this picker, over ZeroMQ with CURVE."""
