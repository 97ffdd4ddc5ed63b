"""Predicted against actual cached tokens: the cache model beside the model server's own word."""
