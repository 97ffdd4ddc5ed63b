"""The commands that look into a running picker, by its operators' port."""
