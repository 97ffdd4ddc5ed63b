"""What the picker tells its operators: metrics, health, logs. It decides nothing."""
