"""The console on the operators' port: pages for a browser, and the data that they ask for."""
