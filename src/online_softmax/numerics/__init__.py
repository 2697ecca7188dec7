"""What floating-point arithmetic allows: number formats, error bounds, and how a row goes in one. Imports
nothing of this package."""
