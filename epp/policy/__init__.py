"""The policy: plug-ins that filter, score and pick candidates, and the profile that runs them."""
