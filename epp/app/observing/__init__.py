"""What observes requests, and the pages about decisions and endpoints."""
