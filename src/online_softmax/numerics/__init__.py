"""What floating-point arithmetic allows: error bounds. Imports nothing of this package."""
