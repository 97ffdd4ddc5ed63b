"""The benchmark `index`: block hashes, the prefix index and block pools, compiled and in Python."""
