"""The one command, `evenflow`: client of the admin and inference services, and supervisor behind `evenflow up`."""
