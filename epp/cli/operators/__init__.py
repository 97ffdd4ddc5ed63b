"""The commands that inspect a running picker through its operators' port."""
