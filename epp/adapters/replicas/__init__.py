"""Messages to and from other replicas of this picker, over ZeroMQ with CURVE or a Redis server."""
