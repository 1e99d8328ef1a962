"""xarray → a store: what is written, how it fits what is there, and the order of the commit."""
