"""The admin service: tenancy, credentials and quota policies as resources (AIP-121)."""
