"""xarray → a store: encode, fit to the stored content, and write in a transaction."""
