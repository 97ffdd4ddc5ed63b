"""Plug-ins of other routers' policies, held against the routers themselves."""
