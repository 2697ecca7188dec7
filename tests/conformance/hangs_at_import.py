"""A subject whose module never finishes its import."""

import time

time.sleep(3600)
