"""Data producers: plug-ins that learn facts about candidates for other plug-ins."""
