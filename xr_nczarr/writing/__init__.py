"""Write xarray objects: encode them, fit them to the stored content, and store them atomically."""
