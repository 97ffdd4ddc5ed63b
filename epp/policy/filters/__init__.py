"""The filters, by the facts that they compare."""
