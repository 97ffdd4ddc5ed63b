"""The filters, by what they look at."""
