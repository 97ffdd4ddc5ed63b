"""What runs have shown: figures, tables, plots, the report."""
