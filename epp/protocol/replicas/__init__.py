"""What replicas of one picker tell each other: facts about requests and endpoints, never text."""
