"""What runs on a Warmpick pod, or stands in for it in tests and demos."""
