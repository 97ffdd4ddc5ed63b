"""Why decisions fell as they did; nothing here is run unless somebody asks."""
