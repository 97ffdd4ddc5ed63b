"""Bodies of OpenAI's API: requests read for routing, responses read for usage."""
