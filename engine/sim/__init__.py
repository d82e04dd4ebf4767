"""The scheduler in virtual time: traffic in, measurements out. Knows neither tensors nor the wire."""
