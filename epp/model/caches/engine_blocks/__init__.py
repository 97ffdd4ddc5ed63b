"""The known blocks of an engine, by its own hashes; the extension is in `native`."""
