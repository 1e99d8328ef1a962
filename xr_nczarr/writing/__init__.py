"""Write xarray objects to a new or an existing store, in one transaction."""
