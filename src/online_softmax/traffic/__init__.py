"""What an operation moves and what a machine can: bytes by formula (model), rates measured (machine)."""
