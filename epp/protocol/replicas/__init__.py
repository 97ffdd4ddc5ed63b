"""What replicas of one picker send each other: facts about requests and endpoints, never text."""
