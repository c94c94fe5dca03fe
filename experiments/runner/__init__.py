"""Common parts of all experiments: runs by name, the places where they run, and how they are made and compared."""
