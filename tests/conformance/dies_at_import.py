"""A subject whose module ends the process when it is imported."""

import os

os._exit(3)
