"""Write xarray objects to a new or existing store in a single transaction."""
