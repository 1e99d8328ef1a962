"""Write xarray objects: encode them, fit them to the store, and write them atomically."""
